"""Plans: what jobs say they will read (PLAN.md) becomes growing orders for the prefetcher, and is forgotten in time.

Owns the table of plans and the account of what was refused or left out. A plan's paths are looked up in the tree as it
is now; so a plan never leads to a version that nobody can open, and one whose files changed begins anew.
"""

from __future__ import annotations

import errno as errno_codes
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from common import limits
from common.entries import Kind as EntryKind
from common.errors import HeadraceError, OrderError, UsageError
from common.log import get_logger
from spoke.namespace.tree import Tree
from spoke.orders.growing import GrowingOrder
from spoke.plan_message import (
    Kind,
    PlanAnswer,
    PlanMessage,
    PlanMessageTooLarge,
    decode,
    encode_answer,
    is_plan_command,
)
from spoke.prefetch.orders import FileFacts, Order, Reason

log = get_logger(__name__)

_LANE = 0  # each rank says a plan of its own
_UNKNOWN, _PAST_END, _EMPTY = "unknown-file", "past-end", "empty"


class PlanUnknown(UsageError):
    """A message about a plan, or about files, that are not there."""

    wire_code = "plan-unknown"
    errno = errno_codes.ENOENT


class PlanPastEnd(UsageError):
    """A message whose steps all lie past the end of their files."""

    wire_code = "plan-past-end"
    errno = errno_codes.ERANGE


class NoRoomForPlan(UsageError):
    """Plans hold as much as they may (limits.py). Say it again once some of it was read."""

    wire_code = "no-room-for-plan"
    errno = errno_codes.ENOSPC
    retryable = True


class PlansOff(UsageError):
    """A plan for a mount that fetches nothing ahead."""

    wire_code = "plans-off"
    errno = errno_codes.EOPNOTSUPP


class Follows(Protocol):
    """Who fetches along orders."""

    def add_order(self, order: Order) -> None:
        """Raises OrderError when too many are followed. It has the order forget what was read."""

    def order_grew(self, name: str) -> None: ...
    def drop_order(self, name: str) -> bool: ...
    def orders(self) -> Sequence[Mapping[str, Any]]:
        """Facts on each: ``name``, ``state``, ``used_bytes``, ``wasted_bytes``, and ``lanes``, each with its ``position``."""


class _Range(NamedTuple):
    file: FileFacts
    offset_bytes: int
    length_bytes: int


@dataclass(slots=True)
class _Plan:
    """``said_steps`` counts the sender's steps; the order's positions count what was kept of them, cut to pieces."""

    name: str
    token: int
    order: GrowingOrder
    begun_s: float
    used_s: float
    said_steps: int
    last: bool = False
    read_steps: int = 0
    state: str = "waiting"
    used_bytes: int = 0
    wasted_bytes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def kept_steps(self) -> int:
        return self.order.length(_LANE)


class Plans:
    """All plans of one mount. ``follower`` None: nothing is fetched ahead, every plan is refused.

    ``on_marks`` gets messages that mark training steps, and the thread that said them.
    ``message`` is for both ways in; call ``tend`` every few seconds. Everything runs in the event loop and returns at once.
    """

    def __init__(
        self,
        tree: Tree,
        follower: Follows | None,
        clock: Callable[[], float],
        on_marks: Callable[[PlanMessage, int], None] = lambda _message, _task_id: None,
    ) -> None:
        self._tree = tree
        self._follower = follower
        self._clock = clock
        self._on_marks = on_marks
        self._plans: dict[str, _Plan] = {}
        self._log_after_s: dict[str, float] = {}
        self._unlogged: Counter[str] = Counter()
        self._checked_revision = tree.revision
        self._last_refusal: tuple[float, str] | None = None
        self.taken_steps_total = 0
        self.left_out_total: Counter[str] = Counter({_UNKNOWN: 0, _PAST_END: 0, _EMPTY: 0})
        self.refused_total: Counter[str] = Counter()
        self.ended_total: Counter[str] = Counter()

    @property
    def active(self) -> int:
        return len(self._plans)

    # --- the ways in -------------------------------------------------------------------------------------

    def ioctl(self, command: int, data: bytes, out_size_bytes: int, task_id: int = 0) -> tuple[int, bytes] | None:
        """Answer an ioctl on ``.headrace/plan``: 0 or an errno below it, and bytes; None if its number is not ours."""
        if not is_plan_command(command):
            return None
        result, answer = 0, PlanAnswer()
        try:
            answer = self.message(data, task_id)
        except HeadraceError as error:
            result, answer = -error.errno, self.room(str(error))
        return result, encode_answer(answer, out_size_bytes)

    def request(self, data: bytes) -> Mapping[str, Any]:
        """Answer a message that came by the control socket."""
        result, answer = 0, PlanAnswer()
        try:
            answer = self.message(data)
        except HeadraceError as error:
            result, answer = error.errno, self.room(str(error))
        return {"errno": result, **asdict(answer)}

    def message(self, data: bytes, task_id: int = 0) -> PlanAnswer:
        """Take one message of a thread (0: not known). Raises a HeadraceError, counted and logged, for one that is refused."""
        name = ""
        try:
            message = decode(data)
            name = message.name
            if message.kind is Kind.MARKS:
                self._on_marks(message, task_id)
                return self.room()
            if self._follower is None:
                raise PlansOff("this mount fetches nothing ahead (prefetch is off): plans have no use")
            return self._take(message, self._follower)
        except HeadraceError as error:
            self.refused_total[error.wire_code] += 1
            self._last_refusal = self._clock(), f"{name}: {error}" if name else str(error)
            self._tell(error.wire_code, "a plan was refused", plan=name, error=str(error))
            raise

    def _take(self, message: PlanMessage, follower: Follows) -> PlanAnswer:
        plan = self._plans.get(message.name)
        match message.kind:
            case Kind.DROP:
                if plan is not None and message.token in (0, plan.token):
                    self._end(plan, "dropped")
                elif plan is None and message.token == 0:
                    raise PlanUnknown(f"no plan is named {message.name!r}")
                return self.room()
            case Kind.LOOK:
                return self.room() if plan is None else self._answer(plan)
            case _:  # STEPS: marks do not come here
                return self._grow(plan, message, follower)

    # --- steps -------------------------------------------------------------------------------------------

    def _grow(self, plan: _Plan | None, message: PlanMessage, follower: Follows) -> PlanAnswer:
        now_s = self._clock()
        if plan is not None and plan.token != message.token:
            self._end(plan, "begun-anew")
            plan = None
        if plan is not None:
            self._catch_up([plan], follower)
        known_steps = max(0, plan.said_steps - message.from_step) if plan is not None else 0
        ranges, left_out, left_out_steps = self._look_up(message, known_steps)
        new_files = {found.file.version for found in ranges}
        if plan is not None and len(plan.order.files) + len(new_files) > limits.PLAN_MAX_FILES:
            self._end(plan, "too-many-files")
            plan = None
        self._check_room(plan, len(ranges), len(new_files))
        answered_new = plan is None
        if plan is None:
            # One more message than the limit: what was read shares memory with what was not.
            order = GrowingOrder(
                f"plan:{message.name}",
                Reason.PLAN,
                max_steps=limits.PLAN_MAX_STEPS + 2 * limits.ORDER_GROWING_TAIL_STEPS,
            )
            plan = _Plan(message.name, message.token, order, now_s, now_s, message.from_step)
        numbers = dict.fromkeys(new_files, -1)
        for file, offset_bytes, length_bytes in ranges:
            number = numbers[file.version]
            if number < 0:
                number = numbers[file.version] = plan.order.add_file(file)
            plan.order.append(_LANE, number, offset_bytes, length_bytes)
        if ranges and answered_new:
            try:
                follower.add_order(plan.order)
            except OrderError as error:
                raise NoRoomForPlan(str(error)) from None
            self._plans[plan.name] = plan
            self._tell("began", "a plan began", plan=plan.name, steps=len(ranges), first=ranges[0].file.path)
        elif ranges:
            follower.order_grew(plan.order.name)
        plan.said_steps = max(plan.said_steps, message.from_step + len(message.files))
        plan.last = plan.last or message.last
        plan.used_s = now_s
        plan.left_out.update(left_out)
        self.left_out_total.update(left_out)
        self.taken_steps_total += len(ranges)
        if left_out:
            self._tell("left-out", "steps of a plan were left out", plan=plan.name, **left_out)
        text = "" if not left_out else "left out: " + ", ".join(f"{count} {why}" for why, count in left_out.items())
        answer = self.room(text) if not ranges and answered_new else self._answer(plan, new=answered_new, text=text)
        return replace(answer, left_out_steps=tuple(left_out_steps))

    def _look_up(self, message: PlanMessage, known_steps: int) -> tuple[list[_Range], Counter[str], list[int]]:
        """The steps from ``known_steps`` on, in files as they are now, cut to their ends and to pieces; what was left out, and where."""
        files = [self._file(path) for path in message.paths]
        ranges: list[_Range] = []
        left_out: Counter[str] = Counter()
        left_out_steps: list[int] = []
        piece_bytes = limits.PLAN_STEP_MAX_BYTES
        columns = message.files[known_steps:], message.offsets_bytes[known_steps:], message.lengths_bytes[known_steps:]
        for step, (number, offset_bytes, length_bytes) in enumerate(zip(*columns, strict=True), known_steps):
            file = files[number]
            end_bytes = min(offset_bytes + length_bytes, file.size_bytes) if file is not None else 0
            if file is None or offset_bytes >= end_bytes:
                left_out[_UNKNOWN if file is None else _PAST_END if length_bytes else _EMPTY] += 1
                left_out_steps.append(step)
                continue
            if len(ranges) + (end_bytes - offset_bytes) // piece_bytes >= limits.PLAN_MESSAGE_MAX_STEPS:
                raise PlanMessageTooLarge(
                    f"one message leads to over {limits.PLAN_MESSAGE_MAX_STEPS} steps of at most {piece_bytes} bytes: send several"
                )
            start_bytes = offset_bytes
            while end_bytes - start_bytes > piece_bytes:
                cut_bytes = (start_bytes // piece_bytes + 1) * piece_bytes
                ranges.append(_Range(file, start_bytes, cut_bytes - start_bytes))
                start_bytes = cut_bytes
            ranges.append(_Range(file, start_bytes, end_bytes - start_bytes))
        if left_out and not ranges:
            self.left_out_total.update(left_out)
            self._refuse_empty(message, files, left_out)
        return ranges, left_out, left_out_steps

    def _refuse_empty(
        self, message: PlanMessage, files: Sequence[FileFacts | None], left_out: Mapping[str, int]
    ) -> None:
        if left_out.get(_PAST_END):
            sizes = ", ".join(
                f"{os.fsdecode(file.path)!r} has {file.size_bytes} bytes" for file in files[:3] if file is not None
            )
            raise PlanPastEnd(f"no step of the message lies within its file: {sizes}")
        if left_out.get(_UNKNOWN):
            path = next(path for path, file in zip(message.paths, files, strict=True) if file is None)
            raise PlanUnknown(
                f"{os.fsdecode(path[:256])!r} is no file of the dataset (paths are relative to the mount's root)"
                + (f"; {len(message.paths)} paths like it" if len(message.paths) > 1 else "")
            )

    def _file(self, path: bytes) -> FileFacts | None:
        node = self._tree.resolve(path) if path else None
        if node is None or node.kind is not EntryKind.FILE:
            return None
        entry = node.entry
        return FileFacts(path, entry.version, entry.size_bytes)

    def _check_room(self, plan: _Plan | None, steps: int, files: int) -> None:
        """Raises NoRoomForPlan. A new plan may push out one that nobody used for a while."""
        if plan is None and len(self._plans) >= limits.PLANS_MAX:
            oldest = min(self._plans.values(), key=lambda known: known.used_s)
            if self._clock() - oldest.used_s < limits.PLAN_IDLE_S:
                raise NoRoomForPlan(f"there are {len(self._plans)} plans, all in use; one more is too many")
            self._end(oldest, "made-way")
        if steps > self._room_steps(plan):
            held = sum(known.order.held_steps for known in self._plans.values())
            if plan is None:
                raise NoRoomForPlan(f"all plans hold {held} steps; at most {limits.PLANS_MAX_STEPS}")
            unread = "none of them was read" if not plan.read_steps else f"{plan.read_steps} were read before"
            raise NoRoomForPlan(
                f"this plan holds {plan.order.held_steps} steps, all plans {held}; at most {limits.PLAN_MAX_STEPS} and "
                f"{limits.PLANS_MAX_STEPS}: {unread}"
            )
        if sum(len(known.order.files) for known in self._plans.values()) + files > limits.PLANS_MAX_FILES:
            raise NoRoomForPlan(f"all plans name over {limits.PLANS_MAX_FILES} files")

    def _room_steps(self, plan: _Plan | None) -> int:
        held = sum(known.order.held_steps for known in self._plans.values())
        own = plan.order.held_steps if plan is not None else 0
        return max(0, min(limits.PLAN_MAX_STEPS - own, limits.PLANS_MAX_STEPS - held))

    def _answer(self, plan: _Plan, *, new: bool = False, text: str = "") -> PlanAnswer:
        waiting = plan.kept_steps - plan.read_steps
        return PlanAnswer(plan.said_steps, waiting, self._room_steps(plan), new, text)

    def room(self, text: str = "") -> PlanAnswer:
        """The answer about no plan in particular."""
        return PlanAnswer(room_steps=self._room_steps(None), text=text)

    # --- forgetting --------------------------------------------------------------------------------------

    def _catch_up(self, plans: Iterable[_Plan], follower: Follows) -> None:
        """Learn how far plans were read; their orders forget what lies behind by themselves."""
        states = {facts["name"]: facts for facts in follower.orders()}
        for plan in plans:
            facts = states.get(plan.order.name)
            if facts is None:
                continue
            plan.state = facts["state"]
            plan.used_bytes, plan.wasted_bytes = facts["used_bytes"], facts["wasted_bytes"]
            position = max((lane["position"] for lane in facts["lanes"]), default=0)
            if position > plan.read_steps:
                plan.read_steps = min(position, plan.kept_steps)
                plan.used_s = self._clock()

    def tend(self) -> None:
        """Forget plans that were read, that nobody uses, and those whose files changed."""
        if self._follower is None or not self._plans:
            return
        now_s = self._clock()
        look_at_files = self._tree.epoch % 2 == 0 and self._tree.revision != self._checked_revision
        if look_at_files:
            self._checked_revision = self._tree.revision
        self._catch_up(self._plans.values(), self._follower)
        for plan in list(self._plans.values()):
            changed = self._changed_file(plan) if look_at_files else None
            if changed is not None:
                self._end(plan, "file-changed")
                self._tell("file-changed", "a plan ended: a file of it changed", plan=plan.name, path=changed.path)
            elif plan.last and plan.read_steps >= plan.kept_steps:
                self._end(plan, "read")
            elif now_s - plan.used_s >= limits.PLAN_UNUSED_S:
                self._end(plan, "unused")
                unread = plan.kept_steps - plan.read_steps
                self._tell("unused", "a plan was forgotten: nobody uses it", plan=plan.name, unread_steps=unread)

    def _changed_file(self, plan: _Plan) -> FileFacts | None:
        return next((file for file in plan.order.files if not self._tree.is_live(file.version)), None)

    def _end(self, plan: _Plan, why: str) -> None:
        del self._plans[plan.name]
        self.ended_total[why] += 1
        if self._follower is not None:
            self._follower.drop_order(plan.order.name)

    # --- what it shows -----------------------------------------------------------------------------------

    @property
    def held_steps(self) -> int:
        """Steps kept in memory, over all plans."""
        return sum(plan.order.held_steps for plan in self._plans.values())

    def facts(self) -> Mapping[str, Any]:
        """For ``status`` and ``plan list``."""
        now_s = self._clock()
        if self._follower is not None:
            self._catch_up(self._plans.values(), self._follower)
        refusal = self._last_refusal
        return {
            "active": [
                {
                    "name": plan.name,
                    "said_steps": plan.said_steps,
                    "kept_steps": plan.kept_steps,
                    "read_steps": plan.read_steps,
                    "held_steps": plan.order.held_steps,
                    "files": len(plan.order.files),
                    "state": plan.state,
                    "used_bytes": plan.used_bytes,
                    "wasted_bytes": plan.wasted_bytes,
                    "left_out": dict(plan.left_out),
                    "complete": plan.last,
                    "age_s": now_s - plan.begun_s,
                    "idle_s": now_s - plan.used_s,
                }
                for plan in self._plans.values()
            ],
            "taken_steps": self.taken_steps_total,
            "left_out_steps": dict(self.left_out_total),
            "refused_messages": dict(self.refused_total),
            "last_refusal": None if refusal is None else {"reason": refusal[1], "ago_s": now_s - refusal[0]},
            "ended": dict(self.ended_total),
        }

    def _tell(self, kind: str, event: str, **facts: object) -> None:
        """A log line, one a minute for each kind."""
        now_s = self._clock()
        if now_s < self._log_after_s.get(kind, now_s):
            self._unlogged[kind] += 1
            return
        self._log_after_s[kind] = now_s + limits.PLAN_LOG_INTERVAL_S
        more = self._unlogged.pop(kind, 0)
        if more:
            facts["more_like_it"] = more
        (log.info if kind == "began" else log.warning)(event, **facts)
