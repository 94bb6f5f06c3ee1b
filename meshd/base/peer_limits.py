"""The limits on what one peer or one issuer may make this node keep, open, dial, compute, write and send.
Pure.

An issuer is an inviter, or one invite of the root; all members that it admitted share its limits.

docs/security.md shows an excerpt. Every limit against a member is here and nowhere else; the sizes of single
messages are in wire/limits.py.
"""

from meshd.base.admission import Rate, Share

# Links, and connections before they become links.
LINKS = Share("links, including those still in the greeting", 8, "peer", "further links are closed")
CALLS = Rate("links that it opens", 1.0, 64, "peer", "the link is refused before anything is signed")
CALLS_FAILED = Rate(
    "connections that prove nothing, or are refused",
    2.0,
    64,
    "address",
    "connections from there are ignored",
)
CALLERS_KNOWN = Share(
    "addresses whose failed connections are counted", 4096, "node", "the one silent longest is dropped"
)
CALLS_FAILED_KNOWN = Rate(
    "further ones from an address of a recent member; as many from its UDP port",
    4.0,
    64,
    "address",
    "connections from there are ignored",
)
CALLERS_PLACES = Share(
    "remembered addresses of members, with and without UDP port",
    1024,
    "node",
    "the one silent longest is dropped",
)
CALLERS_PLACES_OF_PEER = Share(
    "remembered addresses of a member, with and without UDP port",
    4,
    "peer",
    "the one silent longest is dropped",
)
FAULTS = Rate("unexpected failures of its work", 1 / 60, 5, "peer", "its links are refused for a minute")
FAULT_LINES = Rate("log lines about such failures of one kind", 1 / 60, 3, "peer", "counted in the next line")
FAULT_LINES_IN_ALL = Rate("log lines about such failures", 1.0, 30, "node", "counted in the next line")
EARLY_STREAMS = Share(
    "streams waiting for a leased mesh-server to start", 8, "peer", "further ones are refused"
)

BROWSERS = Share("browsers", 32, "node", "the oldest connection is closed")
BROWSERS_OF_KEY = Share("connections of one browser", 4, "key", "the oldest is closed")
BROWSERS_UNPROVEN = Share(
    "browsers that have proven nothing yet",
    16,
    "node",
    "an older one from the network with the most is closed",
)
BROWSERS_UNPROVEN_OF_ADDRESS = Share(
    "browsers that have proven nothing yet", 4, "address", "an older one from that address is closed"
)
JOINING = Share("nodes joining over one kind of link", 16, "node", "further ones are turned away")
JOINING_OF_KEY = Share("joins in progress with one key", 2, "key", "further ones are turned away")

# Streams of members.
TUNNELLED = Share("connections to an exposed service", 128, "service", "further streams are refused")
TUNNELLED_OF_PEER = Share("connections to one exposed service", 96, "peer", "further streams are refused")
PASSED_ON = Share("circuits between other members", 64, "node", "further streams are refused")
PASSED_ON_OF_PEER = Share("circuits to other members", 8, "peer", "further streams are refused")
PASSED_ON_OF_ISSUER = Share("circuits to other members", 48, "issuer", "further streams are refused")
WELCOMED = Share("circuits to this node through members", 256, "node", "further streams are refused")
WELCOMED_BY_PEER = Share(
    "circuits to this node through one member", 16, "peer", "further streams are refused"
)
LENT = Share("streams of a head to a leased worker", 8, "lease", "further streams are refused")
PUSHED = Share("streams of other workers to a leased worker", 64, "lease", "further streams are refused")
PUSHED_OF_PEER = Share(
    "streams of one worker to another leased worker", 4, "peer", "further streams are refused"
)
SIGNALS_WAITING = Share("waiting signals of one kind", 64, "node", "the largest sender loses one")
SIGNAL_RATE = Rate("signals of one sender through one channel", 20.0, 60.0, "peer", "the signal is dropped")
SIGNAL_ROUTE_RATE = Rate(
    "signals delivered by one member or relay client", 60.0, 200.0, "peer", "the signal is dropped"
)
SIGNAL_ROUTE_OF_ISSUER = Rate("signals through one channel", 45.0, 150.0, "issuer", "the signal is dropped")
SIGNAL_MAIL_RATE = Rate("signals delivered by relays, in total", 200.0, 400.0, "node", "the next one waits")
SIGNALS_FORWARDED = Rate("signals forwarded for a member", 10.0, 40.0, "peer", "the stream is refused")
COOKIES_TOLD = Rate("cookies sent after late signals", 0.5, 2.0, "peer", "none is sent")
MAIL_WAITING = Share("waiting letters from relays", 128, "node", "the largest share loses one")
SIGNALS = Share("signals being received", 512, "node", "further streams are refused")
SIGNALS_OF_PEER = Share("signals being received from one peer", 64, "peer", "further streams are refused")
SIGNALS_OF_ISSUER = Share("signals being received", 384, "issuer", "further streams are refused")

# The API (gateway/).
API_STRANGERS = Share("API connections without a key so far", 64, "node", "the oldest is closed")
API_STRANGERS_OF_ADDRESS = Share(
    "API connections without a key so far", 16, "address", "its oldest is closed"
)
API_CLIENTS = Share(
    "accepted API connections",
    256,
    "node",
    "an idle one is closed; if none is idle, further requests get 503",
)
API_CLIENTS_OF_KEY = Share(
    "API connections with one key",
    192,
    "key",
    "an idle one of that key is closed; if none is idle, further requests get 503",
)
API_CLIENTS_OF_ADDRESS = Share(
    "API connections with one key from one address beyond loopback",
    128,
    "address",
    "an idle one of these is closed; if none is idle, further requests get 503",
)
API_CALLS = Share("requests of members to this node's API", 48, "node", "further streams are refused")
API_CALLS_OF_PEER = Share("requests to this node's API", 24, "peer", "further streams are refused")
API_CALLS_OF_ISSUER = Share("requests to this node's API", 36, "issuer", "further streams are refused")
BROWSERS_ANSWERED = Share(
    "browsers whose requests are answered over data channels", 16, "node", "further ones are refused"
)
BROWSER_STATES = Share("streams of the mesh's state to one browser", 4, "key", "further ones get 503")
BROWSER_TABS = Share("pages of one browser", 4, "key", "the one without a channel for longest is forgotten")
BROWSER_REQUESTS = Share("requests of one browser, all pages together", 8, "key", "further ones fail")
BROWSER_SILENT_SECONDS = Share("seconds without a word of a browser", 30, "key", "its channel is closed")
BROWSER_HEADERS = Share("headers of a request over a data channel", 100, "key", "its channel is closed")
BROWSER_HELD_KIB = Share("KiB of an answer that a browser has not received", 256, "key", "the answer waits")
BROWSER_HELD_IN_ALL_KIB = Share(
    "KiB of all answers that a browser has not received", 1024, "key", "the answers wait"
)
BROWSER_SENT_KIB = Share("unread KiB of a browser's request", 128, "key", "its channel is closed")
BROWSER_AWAY_SECONDS = Share(
    "seconds that requests outlive the channel of their browser", 60, "key", "they are cancelled"
)
SERVING_TOLD = Share("members told what this node serves", 64, "node", "further streams are refused")
SERVING_TOLD_OF_PEER = Share(
    "streams that tell a member what this node serves", 2, "peer", "further streams are refused"
)
SERVING_TOLD_OF_ISSUER = Share(
    "members told what this node serves", 48, "issuer", "further streams are refused"
)
HEADS_FOLLOWED = Share("heads whose APIs a client knows", 16, "node", "the largest share loses one")
HEADS_FOLLOWED_OF_ISSUER = Share("heads whose APIs a client knows", 12, "issuer", "the others are not asked")
SERVING_HEARD = Rate("messages of a head about what it serves", 8.0, 40, "peer", "the next one waits")
API_USERS_KNOWN = Share(
    "API users whose consumption is remembered",
    1024,
    "node",
    "the one with the least is forgotten",
)
API_MODELS_MEASURED = Share("models with metrics of their own", 64, "node", "others share a label")
API_MODEL_WATCHERS = Share("chat pages that watch several models", 32, "node", "further ones get 503")
API_CULPRITS = Share(
    "API requests that end llama-server, in 10 minutes (without keys: per address)",
    3,
    "key",
    "further requests get 429",
)
API_CULPRITS_GONE = Share(
    "crashes of llama-server with or after an API request given up, all of one key alone, within 10 minutes; "
    "without keys, of one address",
    5,
    "key",
    "further requests get 429",
)
API_STUCK_SECONDS = Share("seconds for a client to read 64 KiB of an answer", 300, "peer", "it is cut off")
API_BODY_VALUES = Share("JSON values in an API request", 2 << 20, "node", "it gets 413")
API_BODY_PARTS = Share(
    "JSON strings, names, lists and objects in an API request", 1 << 18, "node", "it gets 413"
)
API_BODY_BARE_MIB = Share("MiB of JSON outside strings in an API request", 8, "node", "it gets 413")
ANSWER_EVENTS = Share(
    "events of an answer kept to continue it", 1 << 17, "node", "it does not continue after a loss"
)
INTERIM_ANSWERS = Share("interim answers (1xx) of a head to one request", 64, "peer", "it counts as lost")

# Addresses to dial (wire/dialable.py).
ADDRESSES = Share("addresses in a record or a signal, per protocol", 8, "peer", "the others are not dialled")
ROUTED = Share("private addresses outside this node's networks", 2, "peer", "the others are not dialled")
MACHINE_PORTS = Share("ports of this machine named by a record", 1, "peer", "none of them is dialled")
SIGNAL_PORTS = Share("ports of this machine named by a signal", 4, "peer", "none of them is dialled")
DIALS = Rate(
    "connections to addresses that only the peer names", 2.0, 48.0, "peer", "left for later attempts"
)
DIALS_OF_ISSUER = Rate(
    "connections to addresses that only its members name",
    4.0,
    128.0,
    "issuer",
    "left for later attempts",
)
DIALS_TO_HOST_OF_ISSUER = Rate(
    "connections to one host, or port of this machine, that only its members name",
    0.5,
    24.0,
    "issuer",
    "left for later attempts",
)
DIALS_TO_HOST = Rate(
    "connections to one host, or port of this machine, that only peers' records and signals name",
    1.0,
    48.0,
    "address",
    "left for later attempts",
)
DIALS_RESERVED = Rate(
    "further connections to a host where the peer proved itself, or to any if it invited this node",
    0.1,
    8.0,
    "peer",
    "left for later attempts",
)
RETRIES = Rate("immediate dials after news about a peer", 0.05, 6.0, "peer", "the back-off continues")
ATTEMPTS = Rate(
    "answered attempts to connect through NATs", 0.5, 24.0, "peer", "further attempts are refused"
)

# Before the proof, through NATs, relays and mDNS; leases.
STRANGERS = Share(
    "unauthenticated connections of a kind; as many with a caller's mark, and from members' addresses",
    128,
    "node",
    "an older one from the network with the most is closed",
)
STRANGERS_OF_ADDRESS = Share(
    "unauthenticated connections", 8, "address", "an older one from that address is closed"
)
PLAIN_AWAITED = Share(
    "plain connections for sealed pushes that are awaited at the mesh port", 64, "node", "none is offered"
)
PLAIN_AWAITED_OF_PEER = Share(
    "plain connections for sealed pushes that are awaited from one neighbour", 8, "peer", "none is offered"
)
STUN_ANSWERS = Rate(
    "answers to STUN requests over UDP", 32.0, 512.0, "address", "further requests are ignored"
)
STUN_ANSWERS_IN_ALL = Rate(
    "answers to STUN requests over UDP, in total; as many to members and relay clients",
    256.0,
    4096.0,
    "node",
    "further requests are ignored",
)
STUN_SOURCES = Share(
    "addresses whose STUN answers are counted, per kind",
    4096,
    "node",
    "the one silent longest is dropped",
)
SEARCHES = Share("port searches requested by others, 256 sockets each", 2, "node", "further ones are refused")
PROBES = Rate(
    "datagrams of one port search, then a pause of 45 s or more",
    600.0,
    2000.0,
    "peer",
    "the search ends",
)
OFFERS = Share("answered ICE offers of each kind", 64, "node", "further ones are not answered")
OFFERS_OF_PEER = Share("answered ICE offers of each kind", 8, "peer", "its oldest is abandoned")
KNOCKS = Share("answered hole punching attempts of each kind", 16, "node", "further attempts are refused")
KNOCKS_OF_PEER = Share(
    "answered hole punching attempts of each kind", 8, "peer", "further attempts are refused"
)
CHECKS = Rate("ICE checks, all attempts together", 50.0, 1.0, "peer", "the next one waits")
CHECKED = Share(
    "addresses in one ICE attempt, including the sources of checks",
    48,
    "peer",
    "the others are left out",
)
RELAY_VISITS = Share("visited relays that only records name", 16, "node", "the largest share loses one")
LEASES_ASKED = Share("leases being negotiated", 8, "node", "the head gets `busy`")
LEASES_ASKED_OF_PEER = Share("leases being negotiated", 2, "peer", "the head gets `busy`")
LEASES = Share("leases of a worker", 8, "node", "further heads are refused")
LEASES_OF_PEER = Share("leases of a worker", 4, "peer", "further ones are refused")
TRIALS_ASKED = Rate(
    "offers that need new trials of devices",
    1 / 60,
    8,
    "peer",
    "the head gets `busy`",
)
FETCHES_ASKED = Rate(
    "leases that fetch weights from members",
    1 / 60,
    8,
    "peer",
    "the head sends them itself",
)
CAPACITY_ASKED = Share("answers about capacity in progress", 2, "peer", "further ones are refused")
SPEEDS_ASKED = Rate(
    "answers that need new measurements of layers",
    1 / 60,
    8,
    "peer",
    "the answer has no new times",
)
PROBES_AT_ONCE = Share(
    "measurements of paths to this node in progress", 16, "node", "further ones are refused"
)
PROBES_AT_ONCE_OF_PEER = Share(
    "measurements of its path to this node in progress", 2, "peer", "further ones are refused"
)
PROBES_TAKEN = Rate(
    "measurements of its path to this node, 16 MiB each", 1 / 60, 8, "peer", "further ones are refused"
)
SPEEDS_FAILED = Share("layers known to be unmeasurable on a device", 1024, "node", "the oldest is forgotten")
CAPACITY_MESSAGES = Rate("messages of a stream about capacity", 2.0, 20, "peer", "the next one waits")
MODELS_ASKED = Share("questions about models in progress", 16, "node", "further ones are refused")
MODELS_ASKED_OF_PEER = Share("questions about models in progress", 4, "peer", "further ones are refused")
MODELS_ASKED_OF_ISSUER = Share("questions about models in progress", 12, "issuer", "further ones are refused")
MODELS_MESSAGES = Rate("messages of a stream about models", 4.0, 40, "peer", "the next one waits")
MODELS_TOLD = Rate("messages of a member about its models", 100.0, 400, "peer", "the next one waits")
MODELS_READ = Rate(
    "models read whole to answer a member's question for pieces",
    1 / 60,
    8,
    "peer",
    "the answer says so",
)
PIECES_GIVEN = Share("streams of pieces of models", 16, "node", "further ones are refused")
PIECES_GIVEN_OF_PEER = Share("streams of pieces of models", 2, "peer", "further ones are refused")
PIECES_GIVEN_OF_ISSUER = Share("streams of pieces of models", 12, "issuer", "further ones are refused")
PIECES_ASKED = Share(
    "pieces requested ahead on one stream",
    4,
    "peer",
    "the stream is ended",
)
MODEL_HOLDERS = Share(
    "members from which one model is fetched at once", 8, "node", "the others are asked when these fail"
)
MEMBERS_ASKED = Share("members that are asked for their models", 64, "node", "the others are not asked")
GIVEN_WHILE_SERVING = Rate(
    "bytes of models given to members while this node computes",
    16 << 20,
    4 << 20,
    "node",
    "the next ones wait",
)
LEASE_MESSAGES = Rate("messages of a lease's stream", 20.0, 200, "lease", "the next one waits")
PROGRESS_SHOWN = Rate("progress messages of a worker that are shown and logged", 0.5, 5, "peer", "not shown")
EARLY_ENDS = Share(
    "consecutive leases that a worker ended within 300 s of the load",
    2,
    "peer",
    "it is left out for a while, longer each time, if there are enough others",
)
MARKED = Share("workers whose failures a head remembers", 256, "node", "the oldest is forgotten")
APART = Share(
    "pairs of workers that do not push to each other for an hour after one ended a lease",
    256,
    "node",
    "the oldest is forgotten",
)
NEIGHBOURS = Share("neighbours of a lease", 16, "lease", "the lease ends")
NEARBY = Share(
    "mDNS records of this mesh",
    256,
    "node",
    "the node with the most loses one; unknown nodes count as one",
)
NEARBY_OF_PEER = Share("addresses of a node from mDNS", 8, "peer", "the others are left out")
SIGNALS_SENT = Share("outgoing signals in progress", 64, "node", "further ones are not sent")
SENDERS_KNOWN = Share(
    "signal senders whose latest signals are remembered", 512, "node", "the one silent longest is dropped"
)
BOOK_RECORDS = Share("member records in the book", 2048, "node", "the largest share loses one")
INVITER_RECORDS = Share(
    "records of members admitted by one inviter",
    256,
    "issuer",
    "it loses one of its own",
)
TABLED_PEERS = Share("peers with links, streams or dials", 512, "node", "further callers are turned away")
TABLED_ADMITTED = Share(
    "callers other than permanent neighbours",
    96,
    "issuer",
    "further callers are turned away",
)
NEWS_CHECKS = Rate("records, bans and signs of life checked", 100, 600, "peer", "its news wait")
NEWS_HEARD = Share(
    "remembered news from a neighbour, not sent back",
    1024,
    "peer",
    "the oldest is forgotten",
)
NEWS_FAULTS = Rate("invalid records, bans and signs of life", 0.1, 16, "peer", "its news stream is ended")
NEWS_STREAMS = Rate("consecutive news streams in a session", 1 / 30, 4, "peer", "further streams are refused")
GREETED_FAULTS = Share("invalid bans in a greeting", 16, "peer", "the link is closed")
NEWS_OF_ONE = Rate(
    "forwarded changes of one node's record", 0.1, 3, "peer", "the newest is sent when its turn comes"
)
LIVES_OF_ONE = Rate(
    "forwarded changes of one node's signs of life",
    0.2,
    6,
    "peer",
    "the newest is sent when its turn comes",
)
SIGNS_OF_ONE = Rate(
    "forwarded signs of life of a node not considered away",
    1 / 60,
    3,
    "peer",
    "the newest is sent when its turn comes; peers that were told the node is away get it at once",
)
AWAY_OF_ONE = Rate("statements that some member is away", 1 / 60, 16, "peer", "ignored")
AWAY_OF_ISSUER = Rate("statements that some member is away", 0.25, 64, "issuer", "ignored")
AWAY_OF_SUBJECT = Rate("statements that one member is away", 1 / 60, 3, "issuer", "ignored")
REFUTATIONS = Rate(
    "signs of life that refute such statements", 0.2, 5, "node", "the next is signed when its turn comes"
)
COMPARED = Rate("comparisons of parts (buckets)", 1 / 30, 4, "peer", "its hashes are ignored")
DIGESTS = Rate("comparisons of digests", 1 / 30, 4, "peer", "ignored")
ANSWERED = Rate("bytes sent because hashes differ", 16 << 10, 4 << 20, "peer", "the rest waits")
ANSWERED_OF_ISSUER = Rate("bytes sent because hashes differ", 64 << 10, 16 << 20, "issuer", "the rest waits")

# What is remembered of peers.
HINTS = Share("addresses of a node beyond its record", 4, "peer", "the oldest is dropped")
PUNCHED_UNPROVEN = Share(
    "unauthenticated sockets of one hole punching attempt", 8, "peer", "further ones are closed"
)
DIALLED_KNOWN = Share(
    "peers whose dialled addresses are counted, present or not",
    2048,
    "node",
    "the one dialled longest ago is forgotten",
)
PROVEN_HOSTS = Share("remembered hosts where a peer proved itself", 4, "peer", "the oldest is forgotten")
PROVEN_PEERS = Share(
    "peers whose proven hosts are remembered", 1024, "node", "the issuer with most loses its oldest"
)
FAULTS_KNOWN = Share("peers whose failures are remembered", 256, "node", "the oldest is forgotten")
SIGNALLERS_KNOWN = Share(
    "peers whose signal channels are remembered", 256, "node", "the one silent longest is forgotten"
)
ICE_KNOWN = Share(
    "remembered ICE attempts; peers whose checks are paced",
    512,
    "node",
    "the oldest is forgotten",
)
SEARCHES_KNOWN = Share("peers whose port searches are remembered", 256, "node", "the oldest is forgotten")

# The log holds 8 MiB, some 60,000 lines: one peer alone needs days to displace the lines about others.
PEER_LINES = Rate("log lines about one peer", 0.2, 60, "peer", "counted in the next line")
PEER_LINES_IN_ALL = Rate("log lines about peers", 2.0, 600, "node", "counted in the next line")
FIRST_LINES = Rate("log lines about one peer that rarely appears", 1 / 60, 5, "peer", "counted as above")
FIRST_LINES_IN_ALL = Rate("log lines about such peers", 1.0, 300, "node", "counted as above")
KIND_LINES = Rate("log lines of one kind without a peer", 0.2, 60, "node", "counted in the next line")

ALL_LIMITS: tuple[Share | Rate, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Share | Rate)
)  # all of them, in this order
