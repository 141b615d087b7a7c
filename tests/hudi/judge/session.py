"""The process that real Hudi runs in, from our side: start it, ask it, end it. The other side: server.py."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.hudi.judge import environment
from tests.hudi.judge.environment import JudgeError

LOG_CHARS_MAX = 4000
"""How much of Spark's log goes into the error when the server ends by itself."""


class Session:
    """One Spark session with one version of Hudi, in a process group and a scratch folder of its own. `more`: settings
    of Spark; `variables`: of the process's environment. `seconds` is what the last request took inside the server;
    before the first, what Spark took to start."""

    def __init__(
        self,
        version: str,
        cores: int,
        memory: str,
        java_options: str = "",
        more: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        interpreter, jars = environment.python(), environment.jars(version)
        conf = environment.spark_conf(cores, memory) | dict(more or {})
        conf["spark.jars"] = ",".join(filter(None, (jars, conf.get("spark.jars"))))
        # Avro looks classes of Hudi 0.15 up once a process, by the loader of the thread that asks first.
        conf["spark.driver.extraClassPath"] = jars.replace(",", ":")
        if java_options:
            conf["spark.driver.extraJavaOptions"] = java_options
        self.version = version
        self.seconds = 0.0
        self._folder = tempfile.TemporaryDirectory(prefix="judge-", ignore_cleanup_errors=True)
        self.scratch = Path(self._folder.name)
        self.log = self.scratch / "spark.log"
        with self.log.open("wb") as log:
            self._server = subprocess.Popen(
                [str(interpreter), str(environment.SERVER), json.dumps(conf)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.scratch,
                env=os.environ
                | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(self.scratch)}
                | dict(variables or {}),
                process_group=0,
            )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process; Hudi's JVM is a child of it."""
        return self._server.pid

    def ask(self, op: str, *, options: Mapping[str, object], **fields: str | None) -> Any:
        """Send one request and wait for its result. Spark takes options as text only. Whoever ends the wait, such as a
        test's time limit, ends the session: the next request would get this answer."""
        if self._server.returncode is not None:
            raise JudgeError(f"Hudi {self.version} is closed")
        texts = {
            key: "true" if value is True else "false" if value is False else str(value)
            for key, value in options.items()
        }
        assert self._server.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It ended: no answer comes, and that says why.
            self._server.stdin.write(json.dumps({"op": op, "options": texts, **fields}) + "\n")
            self._server.stdin.flush()
        try:
            return self._answer()
        except JudgeError:
            raise
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether requests are answered; not after the end of its process, or of a wait for an answer."""
        return self._server.returncode is None

    def close(self) -> None:
        """End the server and its JVM by their process group, whose number its unreaped leader still holds."""
        if self._server.returncode is None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.communicate()
            self._folder.cleanup()

    def _answer(self) -> Any:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            log = self.log.read_text(errors="replace")[-LOG_CHARS_MAX:]
            raise JudgeError(f"Hudi {self.version} ended by itself, the end of its log:\n{log}")
        answer = json.loads(line)
        self.seconds = answer["seconds"]
        if "error" in answer:
            raise JudgeError(f"Hudi {self.version}: {answer['error']}", answer["trace"])
        return answer.get("result")
