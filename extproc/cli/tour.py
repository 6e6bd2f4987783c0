"""The demo's tour: a few requests that show what the gateway does, with what it measured."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from extproc.cli.chat import Answer, ChatClient

_SYSTEM = (
    "You are the assistant of a team that runs language models for a company. Answer briefly and name what you know "
    "for certain and what you only suppose. "
    + " ".join(
        f"Rule {number}: when a question is about {subject}, say which figures you would look at first, and why."
        for number, subject in enumerate(
            (
                "latency",
                "throughput",
                "memory",
                "the KV cache",
                "prefill",
                "decode",
                "batching",
                "routing",
                "quotas",
                "retries",
                "failures of an engine",
                "updates without an outage",
                "long prompts",
                "costs",
                "tenants",
                "observability",
            ),
            start=1,
        )
    )
)
_QUESTIONS = (
    "Why is the first token slow when prompts are long?",
    "And what changes when the prompt was seen before?",
    "How would I notice that on a dashboard?",
    "Sum this up for a colleague.",
)
_SUBJECTS = ("queues", "caches", "tokens", "streams", "workers", "prompts", "batches", "errors")

Messages = list[Mapping[str, str]]


class Tour:
    """Runs the requests one after another and prints each. `failures` says what went wrong."""

    def __init__(self, console: Console, client: ChatClient, policy: str) -> None:
        """`policy` is the one by which the gateway chooses workers."""
        self._console = console
        self._client = client
        self._policy = policy
        self._live = False  # a streamed answer is being written
        self._conversation: Messages = [{"role": "system", "content": _SYSTEM}]
        self.failures: list[str] = []

    async def run(self) -> None:
        """The whole tour."""
        await self._streamed_answer()
        await self._conversation_goes_on()
        await self._parallel()
        await self._error()

    async def _streamed_answer(self) -> None:
        self._heading("A streamed answer")
        question = _QUESTIONS[0]
        self._console.print(f"[bold]user[/]       {escape(question)}")
        self._console.print("[bold]assistant[/]  ", end="")
        self._live = True
        try:
            answer = await self._say(question, live=True)
        finally:
            # Also when interrupted: the line ends, and the thread that still reads the answer writes no more.
            self._live = False
            self._console.print()
        self._check(answer, "the streamed answer")
        self._console.print()
        self._print_decision(answer)
        self._console.print(self._table([("turn 1", answer)]))

    async def _conversation_goes_on(self) -> None:
        self._heading("The same conversation goes on")
        self._console.print(
            "Every turn sends all turns before it. A worker that has them in its KV cache computes only the rest. The "
            f"policy {self._policy} knows who does, and goes elsewhere where waiting would take longer than computing."
        )
        rows = []
        for number, question in enumerate(_QUESTIONS[1:], start=2):
            answer = await self._say(question, live=False)
            self._check(answer, f"turn {number}")
            rows.append((f"turn {number}", answer))
        self._console.print(self._table(rows))

    async def _parallel(self) -> None:
        self._heading(f"{len(_SUBJECTS)} requests at once")
        prompts = ([{"role": "user", "content": f"Tell me about {subject}."}] for subject in _SUBJECTS)
        asks = (asyncio.to_thread(self._client.ask, prompt, stream=False) for prompt in prompts)
        answers = await asyncio.gather(*asks)
        for subject, answer in zip(_SUBJECTS, answers, strict=True):
            self._check(answer, f"the parallel request about {subject}")
        for worker, count in sorted(Counter(answer.worker for answer in answers).items()):
            self._console.print(f"{worker:24} {'█' * (4 * count)} {count}")

    async def _error(self) -> None:
        self._heading("A mistake in a request")
        prompt = [{"role": "user", "content": "Hello"}]
        answer = await asyncio.to_thread(self._client.ask, prompt, temperature=7)
        self._console.print(f'"temperature": 7 gives HTTP status {answer.status}:')
        self._print_body(answer.body)
        if answer.status != 400:
            self.failures.append(f"temperature 7 gave status {answer.status} in place of 400: {answer.error}")

    async def _say(self, question: str, *, live: bool) -> Answer:
        self._conversation.append({"role": "user", "content": question})
        write = self._write if live else _ignore
        answer = await asyncio.to_thread(self._client.ask, self._conversation, on_text=write)
        self._conversation.append({"role": "assistant", "content": answer.text})
        return answer

    def _print_body(self, body: str) -> None:
        """JSON as it can be copied: no line is wrapped."""
        try:
            self._console.print_json(body, indent=2, ensure_ascii=False)
        except ValueError:
            for line in itertools.islice(body.splitlines(), 10):
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _write(self, text: str) -> None:
        if not self._live:
            return
        self._console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()

    def _heading(self, text: str) -> None:
        self._console.print()
        self._console.rule(f"[bold]{text}", align="left")

    def _check(self, answer: Answer, what: str) -> None:
        problem = answer.error
        if not problem and not answer.text:
            problem = "the answer has no text"
        if not problem and not answer.decision:
            problem = "the answer does not say which worker gave it"
        if problem:
            self.failures.append(f"{what}: {problem}")
            self._console.print(f"[red]failed:[/] {escape(problem)}")

    def _print_decision(self, answer: Answer) -> None:
        decision = answer.decision
        if decision:
            self._console.print(
                f"answered by [bold]{escape(answer.worker)}[/], policy {escape(str(decision.get('policy')))}: "
                f"{escape(str(decision.get('reason')))}",
                soft_wrap=True,
            )

    def _table(self, rows: Sequence[tuple[str, Answer]]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("")
        table.add_column("worker")
        for name in ("prompt tokens", "cached", "first token", "tokens/s"):
            table.add_column(name, justify="right")
        for name, answer in rows:
            first, rate = answer.first_token_s, answer.tokens_per_s
            table.add_row(
                name,
                answer.worker,
                str(answer.prompt_tokens),
                str(answer.cached_tokens),
                f"{first * 1000:.0f} ms" if first is not None else "–",
                f"{rate:.0f}" if rate is not None else "–",
            )
        return table


def _ignore(text: str) -> None:
    """For pieces that nobody watches."""
