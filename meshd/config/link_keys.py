"""The settings of connections to other nodes: the part of keys.py on `links`."""

from meshd.config import forms
from meshd.config.forms import choice, listed, whole
from meshd.config.key import Key
from meshd.config.tree import LINK_KINDS

# A link counts as dead after 4.5 s, and a new one takes a moment. Who asks for an answer waits for minutes.
MIN_GRACE, MAX_GRACE = 10, 140
LINK_KEYS: tuple[Key, ...] = (
    Key(
        section="links",
        field="listen",
        form=forms.ADDRESS,
        option="--listen",
        metavar="HOST:PORT",
        help="address and port of the mesh, TCP and UDP; `:PORT` for all addresses; port 0 picks a free one",
        default="all addresses; the port used last, or the first free one from 17430 up",
        example='":17430"',
        more='"HOST:PORT", or ":PORT" for all addresses. If the port is taken, that is an error; '
        "without this setting the first free of 16 is used, and kept.",
    ),
    Key(
        section="links",
        field="kinds",
        form=listed(choice(*LINK_KINDS), unique=True),
        option="--links",
        metavar="KIND,…",
        list_separator=",",
        help=f"kinds of connection to use, separated by commas: {', '.join(LINK_KINDS)}",
        default="all",
        more="Restrict them only to find a fault.",
    ),
    Key(
        section="links",
        field="stun",
        form=listed(forms.STUN, none="none"),
        option="--stun",
        metavar="HOST:PORT",
        repeat=True,
        list_separator=",",
        help="STUN servers, which tell this node its public address; `none` disables STUN",
        more="Needed for hole punching. [] disables STUN; relays and other members are then asked instead.",
    ),
    Key(
        section="links",
        field="relays",
        form=listed(forms.WORD),
        option="--relay",
        metavar="URL",
        repeat=True,
        list_separator=",",
        help="URLs of relays, as `meshd relay` prints them",
    ),
    Key(
        section="links",
        field="max_upload",
        form=forms.RATE,
        option="--max-upload",
        metavar="RATE",
        help="upload limit of this node per second, such as 20Mbit or 2.5MB",
        default="no limit",
        example='"20Mbit"',
        more="For all peers together; Mbit counts bits, MB bytes.",
    ),
    Key(
        section="links",
        field="grace",
        form=whole(MIN_GRACE, MAX_GRACE),
        option="--grace",
        metavar="SECONDS",
        help="how long answers wait for an unreachable worker; the lower of both nodes' values applies",
        more="In seconds, 10 to 140.",
    ),
    Key(
        section="links",
        field="no_mdns",
        form=forms.BOOLEAN,
        option="--no-mdns",
        switch=True,
        help="disable mDNS: neither announce this node on the local network nor look for others there",
    ),
    Key(
        section="links",
        field="no_portmap",
        form=forms.BOOLEAN,
        option="--no-portmap",
        switch=True,
        help="do not ask the router to map a port (PCP, NAT-PMP, UPnP)",
    ),
    Key(
        section="links",
        field="no_relaying",
        form=forms.BOOLEAN,
        option="--no-relaying",
        switch=True,
        help="do not forward traffic between other members",
    ),
    Key(
        section="links",
        field="compress",
        form=choice("auto", "on", "off"),
        option="--compress",
        metavar="auto|on|off",
        help="compress traffic to and from workers; auto: only on slow connections",
        more='A path within a machine or a wired network is not slow. With "off", a worker accepts no '
        "compressed traffic.",
    ),
)
