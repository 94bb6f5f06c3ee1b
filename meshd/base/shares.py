"""What one peer or one issuer may make this node keep, open, dial, compute, write and say: the one table.
Pure.

An issuer is an inviter, or the root by one of its invites: all that it let in share what is for each issuer.

docs/security.md shows it. A limit that guards against a member stands here and nowhere else; sizes of single
messages stand in wire/limits.py.
"""

from dataclasses import dataclass
from typing import Literal

from meshd.base.bucket import TokenBucket

Of = Literal["peer", "issuer", "address", "service", "lease", "key", "node"]


@dataclass(frozen=True, slots=True)
class Share:
    """At most `most` of `what` at once, for each `of`; `beyond` says what happens to one more."""

    what: str
    most: int
    of: Of
    beyond: str


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_second` of `what`, `burst` at once, for each `of`; `beyond` says what happens to more."""

    what: str
    per_second: float
    burst: float
    of: Of
    beyond: str

    def bucket(self, now: float) -> TokenBucket:
        """A full one."""
        return TokenBucket(rate=self.per_second, burst=self.burst, now=now)


# Links and what comes before them.
LINKS = Share("links, those that are greeting included", 8, "peer", "a further link is closed")
CALLS = Rate("links that it begins", 1.0, 64, "peer", "the link is refused before anything is signed")
CALLS_FAILED = Rate(
    "connections that prove nothing, or are turned away",
    2.0,
    64,
    "address",
    "connections from there are not listened to",
)
CALLERS_KNOWN = Share(
    "addresses whose failed connections are counted", 4096, "node", "the one silent longest goes"
)
CALLS_FAILED_KNOWN = Rate(
    "more such connections from where a member has proven itself in the last hour; as many from its UDP port",
    4.0,
    64,
    "address",
    "connections from there are not listened to",
)
CALLERS_PLACES = Share(
    "addresses where members have proven themselves, with and without their UDP port",
    1024,
    "node",
    "the one silent longest goes",
)
CALLERS_PLACES_OF_PEER = Share(
    "addresses where it has proven itself, with and without its UDP port",
    4,
    "peer",
    "the one silent longest goes",
)
FAULTS = Rate(
    "failures of its work that nobody foresaw", 1 / 60, 5, "peer", "its links are refused for a minute"
)
FAULT_LINES = Rate(
    "log lines about one kind of such a failure", 1 / 60, 3, "peer", "it is counted in the next line"
)
FAULT_LINES_IN_ALL = Rate(
    "log lines about such failures", 1.0, 30, "node", "they are counted in the next line"
)
EARLY_STREAMS = Share(
    "streams that wait for a leased rpc-server to start", 8, "peer", "a further one is refused"
)

JOINING = Share("nodes that are joining by one kind of link", 16, "node", "a further one is turned away")
JOINING_OF_KEY = Share("joins that one key has begun", 2, "key", "a further one is turned away")

# Streams of members.
TUNNELLED = Share("connections to an exposed service", 128, "service", "a further stream is refused")
TUNNELLED_OF_PEER = Share("connections to one exposed service", 96, "peer", "a further stream is refused")
PASSED_ON = Share("circuits between other members", 64, "node", "a further stream is refused")
PASSED_ON_OF_PEER = Share("circuits to other members", 8, "peer", "a further stream is refused")
PASSED_ON_OF_ISSUER = Share("circuits to other members", 48, "issuer", "a further stream is refused")
WELCOMED = Share("circuits to this node through members", 256, "node", "a further stream is refused")
WELCOMED_BY_PEER = Share(
    "circuits to this node through one member", 16, "peer", "a further stream is refused"
)
LENT = Share("streams of the head to its rpc-server", 64, "lease", "a further stream is refused")
PUSHED = Share("streams of other workers to an rpc-server", 128, "lease", "a further stream is refused")
PUSHED_OF_PEER = Share("streams of one worker to another's", 16, "peer", "a further stream is refused")
SIGNALS_WAITING = Share(
    "signals of one kind that nobody has taken", 64, "node", "one of the largest sender goes"
)
SIGNAL_RATE = Rate("signals of one sender that come by one way", 20.0, 60.0, "peer", "the signal is dropped")
SIGNAL_WAY_RATE = Rate(
    "signals that one member or relay's client brings", 60.0, 200.0, "peer", "the signal is dropped"
)
SIGNAL_WAY_OF_ISSUER = Rate("signals that come by one way", 45.0, 150.0, "issuer", "the signal is dropped")
SIGNAL_MAIL_RATE = Rate("signals that relays bring, in all", 200.0, 400.0, "node", "the next waits")
SIGNALS_FORWARDED = Rate("signals passed on for a member", 10.0, 40.0, "peer", "the stream is refused")
COOKIES_TOLD = Rate("cookies told to a sender whose signal was late", 0.5, 2.0, "peer", "it is not told")
MAIL_WAITING = Share("letters of relays that nobody has taken", 128, "node", "one of the largest share goes")
SIGNALS = Share("signals that are coming in", 512, "node", "a further stream is refused")
SIGNALS_OF_PEER = Share("signals that are coming in from one peer", 64, "peer", "a further stream is refused")
SIGNALS_OF_ISSUER = Share("signals that are coming in", 384, "issuer", "a further stream is refused")

# The API (gateway/).
API_STRANGERS = Share("connections to the API without a key yet", 64, "node", "the oldest of them is cut")
API_STRANGERS_OF_ADDRESS = Share(
    "connections to the API without a key yet", 16, "address", "its oldest is cut"
)
API_CLIENTS = Share("connections to the API that were let in", 256, "node", "the request is answered 503")
API_CLIENTS_OF_KEY = Share("connections to the API with one key", 192, "key", "the request is answered 503")

# Addresses to dial (wire/dialable.py).
ADDRESSES = Share("addresses of a record or a signal, of each protocol", 8, "peer", "the rest is not dialled")
ROUTED = Share("private addresses outside our networks", 2, "peer", "the rest is not dialled")
MACHINE_PORTS = Share("ports of this machine that a record names", 1, "peer", "none of them is dialled")
SIGNAL_PORTS = Share("ports of this machine that a signal names", 4, "peer", "none of them is dialled")
DIALS = Rate(
    "connections to addresses that only the peer names", 2.0, 48.0, "peer", "later attempts dial them"
)
RETRIES = Rate("news of a peer after which it is dialled at once", 0.05, 6.0, "peer", "the back-off goes on")
ATTEMPTS = Rate("attempts to meet through NATs, answered", 0.5, 24.0, "peer", "the attempt is refused")

# Before the proof, through NATs, by relays, by mDNS, and leases.
STRANGERS = Share(
    "connections that have not proven who they are, of each kind", 32, "node", "the oldest is cut"
)
STRANGERS_OF_ADDRESS = Share(
    "connections that have not proven who they are", 8, "address", "its oldest is cut"
)
SEARCHES = Share(
    "searches for ports that others asked for, 256 sockets each", 2, "node", "a further one is refused"
)
PROBES = Rate(
    "datagrams of one search, then none for 45 s and longer each time",
    600.0,
    2000.0,
    "peer",
    "the search ends",
)
OFFERS = Share("offers of ICE that are answered, of each kind", 64, "node", "a further one is not answered")
OFFERS_OF_PEER = Share("offers of ICE that are answered, of each kind", 8, "peer", "its oldest is given up")
KNOCKS = Share("attempts to punch that are answered, of each kind", 16, "node", "the attempt is refused")
KNOCKS_OF_PEER = Share(
    "attempts to punch that are answered, of each kind", 8, "peer", "the attempt is refused"
)
CHECKS = Rate("checks of ICE, all attempts together", 50.0, 1.0, "peer", "the next waits")
CHECKED = Share(
    "addresses of one attempt of ICE, those that checks came from included",
    48,
    "peer",
    "the rest is left out",
)
RELAY_VISITS = Share("relays that only records name, visited", 16, "node", "one of the largest share goes")
LEASES_ASKED = Share("leases that are negotiated", 8, "node", "the head is told `busy`")
LEASES_ASKED_OF_PEER = Share("leases that are negotiated", 2, "peer", "the head is told `busy`")
LEASES = Share("leases of a worker", 8, "node", "a further head is refused")
LEASES_OF_PEER = Share("leases of a worker", 2, "peer", "a further one is refused")
PROGRESS_SHOWN = Rate(
    "words of a worker about its progress that a head shows and logs", 0.5, 5, "peer", "it is not shown"
)
EARLY_ENDS = Share(
    "leases in a row that a worker ended within 300 s of the load",
    2,
    "peer",
    "it is left out for a while, longer each time, where enough others are there",
)
MARKED = Share("workers whose failures a head remembers", 256, "node", "the oldest is forgotten")
APART = Share(
    "pairs of workers that may not push to each other, since one ended a lease",
    256,
    "node",
    "the oldest is forgotten",
)
NEIGHBOURS = Share("neighbours of a lease, in either direction", 64, "lease", "the lease ends")
NEARBY = Share("mDNS records of this mesh that are kept", 256, "node", "the oldest goes")
NEARBY_OF_PEER = Share("addresses that mDNS names for a node", 8, "peer", "the rest is left out")
SIGNALS_SENT = Share("signals under way to others", 64, "node", "a further one is not sent")
SENDERS_KNOWN = Share(
    "senders of signals whose last ones are remembered", 512, "node", "the one silent longest goes"
)
BOOK_RECORDS = Share("records of members in the book", 2048, "node", "one of the largest share goes")
INVITER_RECORDS = Share(
    "records of members that one inviter admitted",
    256,
    "issuer",
    "one of its own goes",
)
TABLED_PEERS = Share(
    "peers with which there are links, streams or dials", 512, "node", "a caller is turned away"
)
TABLED_ADMITTED = Share(
    "callers that are no standing neighbours, admitted by one invite or inviter",
    96,
    "issuer",
    "a further caller is turned away",
)
NEWS_CHECKS = Rate(
    "records, bans and signs of life that are checked", 100, 600, "peer", "its news wait until they are read"
)
NEWS_HEARD = Share(
    "news of a neighbour that are remembered, so as not to tell them back",
    1024,
    "peer",
    "the oldest is forgotten",
)
NEWS_FAULTS = Rate(
    "records, bans and signs of life that do not hold", 0.1, 16, "peer", "its stream of news is ended"
)
NEWS_STREAMS = Rate(
    "streams of news that follow each other in a session", 1 / 30, 4, "peer", "a further stream is refused"
)
GREETED_FAULTS = Share("bans in a greeting that do not hold", 16, "peer", "the link is closed")
NEWS_OF_ONE = Rate(
    "changes of one node's record that are told on", 0.1, 3, "peer", "the newest is told when its turn comes"
)
LIVES_OF_ONE = Rate(
    "changes of one node's signs of life that are told on",
    0.2,
    6,
    "peer",
    "the newest is told when its turn comes",
)
SIGNS_OF_ONE = Rate(
    "signs of life of one node, told on without need: nobody here took it to be away",
    1 / 60,
    3,
    "peer",
    "the newest is told when its turn comes; who was told that the node is away has it at once",
)
AWAY_OF_ONE = Rate("statements that somebody is away", 1 / 60, 16, "peer", "it is not listened to")
AWAY_OF_ISSUER = Rate("statements that somebody is away", 0.25, 64, "issuer", "it is not listened to")
AWAY_OF_SUBJECT = Rate("statements that one member is away", 1 / 60, 3, "issuer", "it is not listened to")
REFUTATIONS = Rate(
    "signs of life against such statements", 0.2, 5, "node", "the next is signed when its turn comes"
)
COMPARED = Rate("parts of what is told that are compared", 1 / 30, 4, "peer", "its hashes are passed over")
DIGESTS = Rate("digests of all that is told that are compared", 1 / 30, 4, "peer", "it is passed over")
ANSWERED = Rate("bytes told because hashes differ", 16 << 10, 4 << 20, "peer", "the rest waits")
ANSWERED_OF_ISSUER = Rate("bytes told because hashes differ", 64 << 10, 16 << 20, "issuer", "the rest waits")
OWED = Share(
    "requests of one connection to an rpc-server that are noted as owed",
    16_384,
    "service",
    "a further one is not noted: a hang may be found later",
)
ARRIVED = Share(
    "tensors that other workers sent before the head asked for them, noted by token",
    4096,
    "service",
    "the oldest is forgotten",
)

# What is remembered of peers.
HINTS = Share("addresses of a node that are kept beside its record", 4, "peer", "the oldest goes")
PUNCHED_UNPROVEN = Share(
    "sockets of one attempt to punch that have not proven who is there", 8, "peer", "a further one is closed"
)
FAULTS_KNOWN = Share("peers whose failures are remembered", 256, "node", "the oldest is forgotten")
SIGNALLERS_KNOWN = Share(
    "peers of whose signals' ways anything is remembered", 256, "node", "the one silent longest is forgotten"
)
ICE_KNOWN = Share(
    "attempts of ICE that are remembered, so as not to answer them twice, and peers whose checks are paced",
    512,
    "node",
    "the oldest is forgotten",
)
SEARCHES_KNOWN = Share(
    "peers whose searches for ports are remembered", 256, "node", "the oldest is forgotten"
)

# The log holds 8 MiB, some 60,000 lines: one peer alone needs days to push out what others said.
PEER_LINES = Rate("log lines about one peer", 0.2, 60, "peer", "they are counted in the next line")
PEER_LINES_IN_ALL = Rate("log lines about peers", 2.0, 600, "node", "they are counted in the next line")
FIRST_LINES = Rate("log lines about one peer that says little", 1 / 60, 5, "peer", "they count as above")
FIRST_LINES_IN_ALL = Rate("log lines about peers that say little", 1.0, 300, "node", "they count as above")
KIND_LINES = Rate(
    "log lines of one kind that name no peer", 0.2, 60, "node", "they are counted in the next line"
)

TABLE: tuple[Share | Rate, ...] = tuple(
    one for one in list(globals().values()) if isinstance(one, Share | Rate)
)  # all of them, in this order
