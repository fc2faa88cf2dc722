"""What a client does that openapi-python-client generated: `scenario.py URL`. The test checks the types first."""

import sys
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from uuid import UUID, uuid4

from leasehold_api import Client
from leasehold_api.api.locks import acquire, acquire_several, inspect, release, release_several, renew
from leasehold_api.models import AcquireRequest, AcquireSeveralRequest, Grant, Grants, Lock, LockState, Mode, Problem
from leasehold_api.models import RenewRequest
from leasehold_api.types import Unset

NAME = "orders/42"
client = Client(base_url=sys.argv[1])


def granted(answer: Grant | Problem | None) -> Grant:
    assert isinstance(answer, Grant), answer
    return answer


def refused(answer: object, status: HTTPStatus, code: str) -> Problem:
    assert isinstance(answer, Problem), answer
    assert (answer.status, answer.code) == (status, code), answer
    return answer


# Acquire: the lease is of the lock with the slash, and the second claim is refused with its holder.
first = granted(acquire.sync(NAME, client=client, body=AcquireRequest(ttl="30s", owner="one", mode=Mode.EXCLUSIVE)))
assert (first.name, first.owner, first.replayed) == (NAME, "one", False)
fencing_token: int = first.fencing_token
held = refused(acquire.sync(NAME, client=client), HTTPStatus.LOCKED, "lock_held")
assert not isinstance(held.holders, Unset) and held.holders[0].owner == "one"

# Renew, with the token in the header.
renewed = renew.sync(NAME, client=client, lock_token=str(first.token), body=RenewRequest(ttl="1m"))
assert granted(renewed).ttl_ms == 60_000

# A wait that times out keeps its place for the token of the refusal.
late = refused(acquire.sync(NAME, client=client, body=AcquireRequest(wait="100ms")), HTTPStatus.LOCKED, "wait_timeout")
assert isinstance(late.token, UUID) and late.position == 1

# Wait: the claim is granted when the holder releases.
with ThreadPoolExecutor() as threads:
    waiting = threads.submit(acquire.sync, NAME, client=client, body=AcquireRequest(wait="20s", token=late.token))
    while True:
        lock = inspect.sync(NAME, client=client)
        assert isinstance(lock, Lock) and lock.state is LockState.HELD
        if lock.queue_length == 1:
            break
    released = release.sync_detailed(NAME, client=client, lock_token=str(first.token))
    assert released.status_code == HTTPStatus.NO_CONTENT
    second = granted(waiting.result())
assert second.token == late.token and second.fencing_token > fencing_token
release.sync_detailed(NAME, client=client, lock_token=str(second.token))

# Stop working (412), and do not reuse a token (409).
refused(renew.sync(NAME, client=client, lock_token=str(first.token)), HTTPStatus.PRECONDITION_FAILED, "lease_released")
ended = acquire.sync(NAME, client=client, body=AcquireRequest(token=first.token))
refused(ended, HTTPStatus.CONFLICT, "claim_ended")

# Several locks, under a token of the client.
token = uuid4()
names = ["acct/1", "acct/2"]
grants = acquire_several.sync(client=client, body=AcquireSeveralRequest(names=names), lock_token=str(token))
assert isinstance(grants, Grants) and grants.token == token
assert [grant.name for grant in grants.locks] == names
gone = release_several.sync_detailed(client=client, names=names, lock_token=str(token))
assert gone.status_code == HTTPStatus.NO_CONTENT
print("done")
