"""What is measured of one life of a model: its speed, the bytes of a token, and where the time went."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from meshd.gateway.interface import AnswerTimings
from meshd.identity.keys import PeerId
from meshd.model.output import DevicePath
from meshd.model.status import SplitPart
from meshd.peer.interface import Mesh
from meshd.role.head.away_times import AwayTimes
from meshd.role.head.explain import Explained, RunFacts, explain
from meshd.role.head.measured_speed import MeasuredSpeed
from meshd.role.head.plan_prediction import PlanPredictor, on_paths
from meshd.role.head.round_estimate import RoundSeconds
from meshd.role.head.speed_corrections import SpeedLearner
from meshd.role.head.split_plan import path_to
from meshd.role.head.survey import Surveyor
from meshd.role.head.timed_answers import TimedAnswers
from meshd.role.head.token_cost import TokenCost, crossed


class RunMeasures:
    """Told by the gateway what becomes of requests (gateway.interface.Upstream)."""

    def __init__(self, mesh: Mesh, workers: Callable[[], Mapping[str, PeerId]], away: AwayTimes) -> None:
        """`workers`: those that take part, by their names."""
        self._mesh = mesh
        self._workers = workers
        self._away = away
        self._now = asyncio.get_running_loop().time
        self.speed = MeasuredSpeed()
        self.token_cost = TokenCost(lambda: crossed(mesh, workers().values()))
        self.answers = TimedAnswers()
        self._learner = SpeedLearner()
        self._predictor: PlanPredictor | None = None
        self._facts: RunFacts | None = None

    @property
    def facts(self) -> RunFacts | None:
        """As soon as there is a plan."""
        return self._facts

    @property
    def round_seconds(self) -> RoundSeconds | None:
        """Of rounds of the plan, as predicted; None where they are not."""
        if self._facts is None or self._predictor is None:
            return None
        return self._predictor.rounds_of(self._facts.plan)

    def planned(self, facts: RunFacts) -> None:
        """How the model will run."""
        self._facts = facts
        self._predictor = PlanPredictor(facts.layers, facts.work, facts.machines, facts.options)

    def generated(self, total: int, grown: int, *, alone: bool) -> None:
        """See Upstream."""
        self.token_cost.generated(total, alone=alone)
        self.answers.generated(total, grown, self._now(), alone=alone)

    def answered(self, timings: AnswerTimings, *, alone: bool, seconds: float) -> None:
        """See Upstream."""
        if alone:
            self.speed.answered(timings)
            facts, predictor = self._facts, self._predictor
            if facts is not None and predictor is not None and not timings.drafted:
                plan = on_paths(facts.plan, self._paths().get)  # those at the load were new, perhaps
                predictor.learn(plan, self._learner, timings)  # it predicts rounds of one token
        self.answers.answered(timings, self._now(), alone=alone, seconds=seconds)

    def _paths(self) -> Mapping[str, DevicePath | None]:
        paths = {one.peer: path_to(one.paths) for one in self._mesh.peers()}
        return {name: paths.get(peer) for name, peer in self._workers().items()}

    async def explain(
        self, split: Sequence[SplitPart], surveyor: Surveyor | None, *, drafts: bool
    ) -> Explained | None:
        """Where the time of its tokens went; `split` as it is pushed. None before there is a plan."""
        if self._facts is None:
            return None
        return await explain(
            self._facts,
            split,
            self.answers,
            self._away,
            self._mesh,
            self._workers(),
            surveyor,
            drafts=drafts,
        )
