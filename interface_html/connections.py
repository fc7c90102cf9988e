"""Connections to a server's SQLite file: one that reads, and one that several threads write to."""

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError


@contextmanager
def reading(path: str | Path) -> Iterator[sqlite3.Connection]:
    """A connection that reads the file, as it is at one moment. A server may write meanwhile.

    Raises:
      UserError: the file does not exist or cannot be read.
    """
    if not Path(path).is_file():  # sqlite3 would create it
        raise UserError(f"{path} does not exist: set db=... to the server's database")
    try:
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as sql:
            sql.execute("BEGIN")  # one transaction: all queries see the same data
            yield sql
    except sqlite3.Error as error:
        raise UserError(f"{path} cannot be read: {error}") from None


class _Job:
    """Work on the connection, with its result once it is on the disk or refused."""

    def __init__(self, work: Callable[[sqlite3.Connection], Any]):
        self.work = work
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None


class SharedCommits:
    """Runs work on a connection, in transactions.

    Args:
      connection: opened with isolation_level=None and check_same_thread=False.

    Attributes:
      lock: guards the connection; a reader holds it while it reads.
    """

    def __init__(self, connection: sqlite3.Connection):
        self.connection = connection
        self.lock = threading.Lock()
        self.waiting: deque[_Job] = deque()

    def write(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """Run `work(connection)` and return its result once everything it wrote is on the disk.

        The thread that gets the lock commits the work of all waiting threads, with one flush of the
        disk. Work that raises is rolled back alone. `work` may run twice (see `_commit`), so it
        must change nothing but the database.
        """
        job = _Job(work)
        self.waiting.append(job)
        with self.lock:
            if not job.done:
                self._commit([self.waiting.popleft() for _ in range(len(self.waiting))])
        if job.error is not None:
            raise job.error
        return job.value

    def _commit(self, jobs: Sequence[_Job]) -> None:
        """Commit all jobs in one transaction, or each alone if the storage refuses that.

        Only the jobs that cannot be stored fail.
        """
        try:
            self._transaction(jobs)
        except sqlite3.Error as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._commit([job])
            else:
                jobs[0].error = error
        except BaseException as error:  # an interrupt: nothing was committed
            for job in jobs:
                job.error = error
            raise
        finally:
            for job in jobs:
                job.done = True

    def _transaction(self, jobs: Sequence[_Job]) -> None:
        sql = self.connection
        sql.execute("BEGIN IMMEDIATE")
        try:
            for job in jobs:
                sql.execute("SAVEPOINT job")
                job.value = None
                job.error = None
                try:
                    job.value = job.work(sql)
                except sqlite3.Error:
                    raise
                except Exception as error:  # raised again in the thread of the caller
                    job.error = error
                    sql.execute("ROLLBACK TO job")
                sql.execute("RELEASE job")
            sql.execute("COMMIT")
        except BaseException:
            if sql.in_transaction:
                sql.execute("ROLLBACK")
            raise
