"""What can be set of the ways to other nodes: the part of keys.py on `links`."""

from meshd.config import forms
from meshd.config.forms import choice, listed, whole
from meshd.config.key import Key
from meshd.config.tree import LINK_KINDS

# A link counts as dead after 4.5 s, and a new one takes a moment. An rpc-server waits 150 s for a push of
# another one (native/patches/0021), so no answer outlives more.
MIN_GRACE, MAX_GRACE = 10, 140
LINK_KEYS: tuple[Key, ...] = (
    Key(
        section="links",
        field="listen",
        form=forms.ADDRESS,
        option="--listen",
        metavar="HOST:PORT",
        help="mesh port, TCP and UDP; port 0 picks one",
        default="the one used before, else 17430 and up",
        example='":17430"',
        more='"HOST:PORT", or ":PORT" for all addresses. A port asked for here that is taken is an error; '
        "without one the first free of 16 is taken, and kept.",
    ),
    Key(
        section="links",
        field="kinds",
        form=listed(choice(*LINK_KINDS), unique=True),
        option="--links",
        metavar="KIND,…",
        list_separator=",",
        help=f"kinds of link that may be used, of {','.join(LINK_KINDS)}",
        default="all",
        more="To have fewer helps to find a fault.",
    ),
    Key(
        section="links",
        field="stun",
        form=listed(forms.STUN, none="none"),
        option="--stun",
        metavar="HOST:PORT",
        repeat=True,
        list_separator=",",
        help="STUN server that tells this node its outer address, may repeat; none for no server",
        more="Links that punch through NAT ask it. [] is for none: then relays and other members are asked.",
    ),
    Key(
        section="links",
        field="relays",
        form=listed(forms.WORD),
        option="--relay",
        metavar="URL",
        repeat=True,
        list_separator=",",
        help="relay, by the URL that it prints at its start, may repeat",
    ),
    Key(
        section="links",
        field="max_upload",
        form=forms.RATE,
        option="--max-upload",
        metavar="RATE",
        help="the most that this node sends to all others together, as 20Mbit or 2.5MB",
        default="no limit",
        example='"20Mbit"',
        more="That is in a second: Mbit counts bits, MB bytes.",
    ),
    Key(
        section="links",
        field="grace",
        form=whole(MIN_GRACE, MAX_GRACE),
        option="--grace",
        metavar="SECONDS",
        help="how long answers wait for a worker that cannot be reached; the smaller of both sides counts",
        more="It is in seconds, 10 to 140.",
    ),
    Key(
        section="links",
        field="no_mdns",
        form=forms.BOOLEAN,
        option="--no-mdns",
        switch=True,
        help="neither announce this node on the local network nor look for others there",
    ),
    Key(
        section="links",
        field="no_portmap",
        form=forms.BOOLEAN,
        option="--no-portmap",
        switch=True,
        help="do not ask the home router for a port (PCP, NAT-PMP, UPnP)",
    ),
    Key(
        section="links",
        field="no_relaying",
        form=forms.BOOLEAN,
        option="--no-relaying",
        switch=True,
        help="pass nothing on between members that reach each other only through this node",
    ),
    Key(
        section="links",
        field="compress",
        form=choice("auto", "on", "off"),
        option="--compress",
        metavar="auto|on|off",
        help="compress what workers get and send: auto (where the path is slow), on, off",
        more='A path within a machine or a wired network is not slow. A worker with "off" takes nothing '
        "compressed.",
    ),
)
