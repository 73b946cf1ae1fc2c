"""A client app process that is kept alive: `python -m progfed.flower.worker --runtime 127.0.0.1:9094`.

By default Flower starts a process for every message, which imports torch and reads the data anew. A SuperNode with
`--isolation process` leaves that to others; this process asks it for tasks and runs them one after the other, so that
the model, the data and the modules stay in memory from round to round.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message
from flwr.cli.install import install_from_fab
from flwr.clientapp import ClientApp
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.config import get_project_dir
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from progfed.flower.node import forget
from progfed.flower.supernode import hasten_content

LOG = logging.getLogger("progfed.flower")


def serve(runtime: str, poll: float) -> None:
    """Run the tasks of a SuperNode, without end.

    Each task has a thread, and they train in turns. A task whose run has ended waits for content that will never come
    (Flower would for two hours); it must not keep the next one from its turn.
    """
    wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    turn = threading.Lock()
    with _connected(runtime) as client:
        while True:
            acquired = client.AcquireTask(wanted)
            if acquired.HasField("task") and acquired.token:
                arguments = (runtime, acquired.token, acquired.task.task_id, turn)
                threading.Thread(target=_attempt, args=arguments, daemon=True).start()
            time.sleep(poll)


def _attempt(runtime: str, token: str, number: int, turn: threading.Lock) -> None:
    """Run one task; an error ends only this task, and the worker goes on."""
    try:
        with _connected(runtime, token=token) as client, _beating(client):
            message, context, run, fab = pull_task_input(client)
            with turn:
                TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = number, run.run_id, context.node_id
                _run(client, message, context, partial(_app, run.fab_id, run.fab_version, fab.hash_str, fab.content))
    except Exception as error:
        LOG.exception("a task has failed: %s", error)


def _run(client: RuntimeHttpClient, message: Message, context: Context, app: Callable[[], ClientApp]) -> None:
    """Pull the message, run the app, push its reply and the node's state; the error of an app is its reply."""
    try:
        reply = app()(message, context)
        status, details = SubStatus.COMPLETED, ""
    except Exception as error:
        LOG.exception("the client app has failed")
        details = f"{type(error).__name__}: {error}"
        reply, status = _failure(details, message), SubStatus.FAILED
    push_message(client, reply, context)
    push_task_output(client, context, status, details)


def _failure(details: str, message: Message) -> Message:
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)


@lru_cache(maxsize=1)
def _app(name: str, version: str, digest: str, bundle: bytes) -> ClientApp:
    """The client app of a bundle, loaded once; another bundle replaces it, and nothing of the first is left."""
    install_from_fab(bundle, skip_prompt=True)
    _forget(get_project_dir(name, version, digest).parent)
    load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    return load(name, version, digest)


def _forget(bundles: Path) -> None:
    """Unload the modules of bundles: a new bundle has modules of the same names, and Python would keep the old ones."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(bundles)):
            del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not path.startswith(str(bundles))]
    importlib.invalidate_caches()
    forget()


@contextmanager
def _connected(runtime: str, token: str = "") -> Iterator[RuntimeHttpClient]:
    interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")]
    client = RuntimeHttpClient.from_server_address(
        server_address=runtime,
        insecure=True,
        root_certificates=None,
        interceptors=[*interceptors, *([RuntimeTokenHttpInterceptor(token)] if token else [])],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    try:
        yield client
    finally:
        with suppress(httpx.HTTPError):
            client.close()


@contextmanager
def _beating(client: RuntimeHttpClient) -> Iterator[None]:
    """While the block runs, tell the SuperNode that the task is alive, however long it trains."""
    sender = HeartbeatSender(make_task_heartbeat_fn_http(client))
    sender.start()
    try:
        yield
    finally:
        sender.stop()


def main() -> None:
    """Serve the SuperNode at `--runtime` until the process `--parent` ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", required=True, help="the SuperNode's host and port on this machine")
    parser.add_argument("--parent", type=int, help="end when this process ends: the SuperNode")
    parser.add_argument("--poll", type=float, default=0.1, help="seconds between questions for a task")
    options = parser.parse_args()
    if options.parent:
        start_parent_process_monitor(options.parent)
    hasten_content()
    serve(options.runtime, options.poll)


if __name__ == "__main__":
    main()
