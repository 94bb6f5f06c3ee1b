"""Options of a head with which a plan is the simplest: all workers that are there, one slot, no drafts."""

from meshd.plan.wishes import HeadOptions

PLAIN = HeadOptions(split="always", slots=1, speculate="off")
