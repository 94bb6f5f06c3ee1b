"""A day as it may be at home, for tests that count the bytes of its logs: at most MOST_BYTES on each node.

Three machines: a head, a worker, and a laptop with a client on Wi-Fi. A day of the network is simulated with
real nodes on a virtual clock (tests/sim/test_log_of_a_day.py); what requests and loads write is measured with
real daemons (tests/e2e/test_monitoring.py).
"""

MOST_BYTES = 10_000_000
OF_THE_NETWORK = 2_000_000  # of these, for all that links and members do
REQUESTS = 2000  # some people's chats, or an agent for some hours
LOADS = 24  # of the model: workers that come and go, several models in turns
WIFI_DROPS = 96  # one each quarter of an hour, for some seconds
SLEEPS = 4  # of the laptop, the longest at night
MOVES = 6  # of it to another address
RESTARTS = 3  # of the worker
