//! Sends the requests of one claim and records their outcomes.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::plan::Plan;
use super::record::{Action, Answer, End, Lease, Micros, Mode, Refusal};
use super::recorder::{Recorder, micros};
use super::resource::{Presented, Work};
use super::scenes::Stage;
use super::sse::{self, Opened, Stream};
use crate::waiters::client::Addresses;
use crate::waiters::http1::{self, Connection};

/// How long after the end of its wait a client gives up on a request: a store operation, and a margin for a busy
/// machine.
const GIVES_UP: Duration = Duration::from_secs(8);

/// The timeout for connecting, and after that for the head of a stream's response.
const CONNECTS: Duration = Duration::from_secs(2);

/// A claim with the client that makes its requests.
pub(super) struct Actor<'a> {
    pub(super) plan: &'a Plan,
    recorder: Recorder,
    addresses: Addresses,
    claim: usize,
    owner: String,
    /// Known from the beginning if the client proposed it, else from the first response that contains it.
    pub(super) token: Option<String>,
    connections: BTreeMap<usize, Connection>,
    /// What was granted last.
    leases: Vec<Lease>,
    resource: SocketAddr,
    presented: Presented,
}

/// A stream, with its request in the record.
pub(super) struct Held {
    request: usize,
    stream: Stream,
    recorder: Recorder,
    /// What was reported last.
    pub(super) leases: Vec<Lease>,
}

/// The last event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamState {
    Queued,
    Holds,
    /// The stream has ended.
    Over,
}

impl<'a> Actor<'a> {
    pub(super) fn new(plan: &'a Plan, owner: String, stage: &Stage) -> Self {
        let claim = stage.recorder.claim(plan.terms.claim(&owner));
        let token = plan.terms.has_own_token.then(|| plan.token.clone());
        Self {
            plan,
            recorder: stage.recorder.clone(),
            addresses: stage.addresses.clone(),
            claim,
            owner,
            token,
            connections: BTreeMap::new(),
            leases: Vec::new(),
            resource: stage.resource,
            presented: stage.presented,
        }
    }

    /// Begins to use what the locks of the last grant protect. Shared locks protect nothing that is written.
    pub(super) async fn begin_work(&self) -> Work {
        self.begin_work_with(&self.leases).await
    }

    /// The same with the leases of a stream.
    pub(super) async fn begin_work_with(&self, leases: &[Lease]) -> Work {
        match self.plan.terms.mode {
            Mode::Exclusive => Work::begin(self.resource, self.presented, self.claim, leases).await,
            Mode::Shared { .. } => Work::default(),
        }
    }

    /// Holds for a while, and uses the resource in this time.
    pub(super) async fn work_for(&self, hold: Duration) {
        let work = self.begin_work().await;
        tokio::time::sleep(hold).await;
        work.finish().await;
    }

    /// Acquires the locks with a wait.
    pub(super) async fn acquire(&mut self, process: usize, wait: Duration) -> Option<Answer> {
        let body = self.plan.terms.body(&self.owner, wait);
        let action = Action::Acquire { wait: micros(wait) };
        self.ask(process, action, body, wait + GIVES_UP, End::GaveUp)
            .await
    }

    /// The same, but disconnects after a while. `None` means that it did.
    pub(super) async fn acquire_and_hang_up(
        &mut self,
        process: usize,
        wait: Duration,
        after: Duration,
    ) -> Option<Answer> {
        let body = self.plan.terms.body(&self.owner, wait);
        let action = Action::Acquire { wait: micros(wait) };
        self.ask(process, action, body, after, End::HungUp).await
    }

    /// Acquires again with a higher hold count.
    pub(super) async fn reenter(&mut self, process: usize, depth: u64) -> Option<Answer> {
        let mut body = self.plan.terms.body(&self.owner, Duration::ZERO);
        body["hold_count"] = depth.into();
        let action = Action::Acquire { wait: 0 };
        self.ask(process, action, body, GIVES_UP, End::GaveUp).await
    }

    /// Any request other than an acquire.
    pub(super) async fn act(&mut self, process: usize, action: Action) -> Option<Answer> {
        let body = match action {
            Action::StepDown => json!({ "mode": "shared" }),
            Action::StepBack => json!({ "hold_count": 1 }),
            Action::Evict => json!({ "force": true, "reason": "test" }),
            Action::Acquire { .. } | Action::Hold { .. } | Action::Renew | Action::Release => {
                json!({})
            }
        };
        self.ask(process, action, body, GIVES_UP, End::GaveUp).await
    }

    /// Opens a stream. `None` if it is refused at once.
    pub(super) async fn hold(&mut self, process: usize, wait: Duration) -> Option<Held> {
        let names = self.plan.terms.names.clone();
        let body = self.plan.terms.body(&self.owner, wait).to_string();
        let action = Action::Hold { wait: micros(wait) };
        let request = self
            .recorder
            .sent(Some(self.claim), &names, process, action);
        let token = self.token.clone().unwrap_or_default();
        let headers = format!("Lock-Token: {token}\r\n");
        let path = format!("/locks/{}", names[0]);
        let opened = timeout(wait + GIVES_UP, async {
            let connection = connect(&self.addresses, process).await?;
            sse::open(connection, "POST", &path, &headers, &body).await
        });
        match opened.await {
            Ok(Ok(Opened::Stream(stream))) => Some(Held {
                request,
                stream,
                recorder: self.recorder.clone(),
                leases: Vec::new(),
            }),
            Ok(Ok(Opened::Answer(answer))) => {
                let read = read(action, &answer);
                self.recorder.arrived(request, answer.at, read);
                self.recorder.ended(request, End::Answered);
                None
            }
            Ok(Err(_)) => {
                self.recorder.ended(request, End::Broken);
                None
            }
            Err(_) => {
                self.recorder.ended(request, End::GaveUp);
                None
            }
        }
    }

    async fn ask(
        &mut self,
        process: usize,
        action: Action,
        mut body: Value,
        limit: Duration,
        impatient: End,
    ) -> Option<Answer> {
        let names = self.plan.terms.names.clone();
        let path = match &names[..] {
            [one] => format!("/locks/{one}"),
            several => {
                body["names"] = several.into();
                "/locks".to_owned()
            }
        };
        let method = match action {
            Action::Acquire { .. } | Action::Hold { .. } => "POST",
            Action::Renew | Action::StepDown => "PUT",
            Action::Release | Action::StepBack | Action::Evict => "DELETE",
        };
        let is_eviction = action == Action::Evict;
        let claim = (!is_eviction).then_some(self.claim);
        let token = self.token.clone().filter(|_| !is_eviction);
        let body = body.to_string();
        let http = http1::Request {
            method,
            path: &path,
            token: token.as_deref(),
            body: &body,
        };
        let kept = self.connections.remove(&process);
        // Connecting is not part of the request: nothing has been sent yet.
        let connection = match kept {
            Some(connection) => Ok(connection),
            None => connect(&self.addresses, process).await,
        };
        let request = self.recorder.sent(claim, &names, process, action);
        let Ok(mut connection) = connection else {
            self.recorder.ended(request, End::Broken);
            return None;
        };
        let response = timeout(limit, connection.ask(http)).await;
        match response {
            Ok(Ok(answer)) => {
                self.connections.insert(process, connection);
                if let Some(token) = answer.json()["token"].as_str() {
                    self.token = Some(token.to_owned());
                }
                let read = read(action, &answer);
                if let Answer::Granted { leases, .. } = &read {
                    self.leases.clone_from(leases);
                }
                self.recorder.arrived(request, answer.at, read.clone());
                self.recorder.ended(request, End::Answered);
                Some(read)
            }
            Ok(Err(_)) => {
                self.recorder.ended(request, End::Broken);
                None
            }
            Err(_) => {
                drop(connection);
                self.recorder.ended(request, impatient);
                None
            }
        }
    }
}

impl Held {
    /// Reads events until the time is over, the claim holds, or the stream ends.
    pub(super) async fn listen(&mut self, until: Duration, until_held: bool) -> StreamState {
        let give_up = Instant::now() + until;
        let mut state = StreamState::Queued;
        while let Ok(event) = tokio::time::timeout_at(give_up, self.stream.next()).await {
            let Ok(Some(event)) = event else {
                self.recorder.ended(self.request, End::Broken);
                return StreamState::Over;
            };
            let answer = match event.kind.as_str() {
                "queued" => Answer::Queued,
                "acquired" | "renewed" => {
                    state = StreamState::Holds;
                    let is_new = event.kind == "acquired" && event.data["replayed"] == false;
                    granted(&event.data, is_new)
                }
                _ => refusal(0, &event.data),
            };
            if let Answer::Granted { leases, .. } = &answer {
                self.leases.clone_from(leases);
            }
            let is_over = matches!(answer, Answer::Refused(_));
            self.recorder.arrived(self.request, event.at, answer);
            if is_over {
                self.recorder.ended(self.request, End::Answered);
                return StreamState::Over;
            }
            if until_held && state == StreamState::Holds {
                return state;
            }
        }
        state
    }

    /// Closes the connection.
    pub(super) fn close(self) {
        let Self {
            request,
            stream,
            recorder,
            leases: _,
        } = self;
        // Recorded first, because from here on the lease may end because of this.
        recorder.ended(request, End::HungUp);
        drop(stream);
    }
}

pub(super) async fn connect(addresses: &Addresses, process: usize) -> io::Result<Connection> {
    let opened = timeout(CONNECTS, Connection::open(addresses.get(process))).await;
    opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn millis(value: &Value) -> Micros {
    value.as_u64().unwrap_or(0) * 1_000
}

/// Parses a response.
fn read(action: Action, answer: &http1::Answer) -> Answer {
    let json = answer.json();
    match answer.status {
        200 if action == Action::Evict => {
            let evicted = json["evicted"].as_array().cloned().unwrap_or_default();
            let fences = evicted
                .iter()
                .filter_map(|one| one["fencing_token"].as_u64());
            Answer::Evicted(fences.collect())
        }
        200 | 201 => granted(&json, answer.status == 201),
        204 => Answer::Freed,
        status => refusal(status, &json),
    }
}

fn granted(json: &Value, is_new: bool) -> Answer {
    let one = [json.clone()];
    let several = json["locks"].as_array();
    let leases = several.map_or(&one[..], Vec::as_slice);
    let waited = leases.iter().map(|lease| millis(&lease["waited_ms"])).min();
    let lease = |lease: &Value| Lease {
        name: lease["name"].as_str().unwrap_or_default().to_owned(),
        fence: lease["fencing_token"].as_u64().unwrap_or(0),
        expires_in: millis(&lease["expires_in_ms"]),
    };
    Answer::Granted {
        leases: leases.iter().map(lease).collect(),
        is_new,
        waited: waited.unwrap_or(0),
    }
}

fn refusal(status: u16, json: &Value) -> Answer {
    let reported = json["status"]
        .as_u64()
        .and_then(|status| u16::try_from(status).ok());
    Answer::Refused(Refusal {
        status: reported.unwrap_or(status),
        code: json["code"].as_str().unwrap_or_default().to_owned(),
        has_place: json["position"].is_u64() && json["place_kept_ms"].is_u64(),
        is_without_effect: json["outcome"] == "nothing_done",
        detail: json["detail"].as_str().unwrap_or_default().to_owned(),
    })
}
