//! The audit stream: a line of JSON for each grant, its rollback, release, eviction, refusal by a rule and change of
//! keys, and who caused it. A line has no token, no key and nothing else that a client could use.
//!
//! Lines go through a bounded buffer of their own. Like the log, the stream never makes a request wait: a line without
//! room is dropped and counted.

use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use serde::Serialize;

use super::auth::Principal;
use super::peers::TotalCount;
use super::requester::{RequestId, Requester};
use crate::domain::{Evicted, Fence, Granted, LockName, LockNames, Released, Verb};
use crate::server::PeerAddress;
use crate::service::{HoldObserver, UnclaimedLease};
use crate::telemetry::LogWriter;

/// How many refusals of one principal for one verb have a line each within a minute. After them, a refusal has one each
/// time their number is a power of two: a client without rights must not decide how long the stream becomes.
const REFUSALS_EACH: u32 = 5;

/// Where audit lines go. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Audit(Option<LogWriter>);

/// The sender of a request, kept for its audit lines while the request runs.
#[derive(Clone)]
pub(super) struct AuditedSender {
    output: LogWriter,
    principal: Option<Principal>,
    peer: Option<PeerAddress>,
    request_id: RequestId,
}

/// The refusals of one principal by rule or role. Each verb has a count of its own, so that the first refused eviction has
/// a line however many acquires were refused before.
#[derive(Default)]
pub(super) struct RefusalSample([RefusalCount; Verb::ALL.len()]);

#[derive(Default)]
struct RefusalCount {
    within_minute: TotalCount,
    left_out: AtomicU32,
}

impl RefusalSample {
    /// Counts a refusal. If it has a line, returns how many had none since the line before.
    fn count(&self, verb: Verb) -> Option<u32> {
        let RefusalCount {
            within_minute,
            left_out,
        } = &self.0[verb as usize];
        let count = within_minute.count();
        if count > REFUSALS_EACH && !count.is_power_of_two() {
            left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(left_out.swap(0, Ordering::Relaxed))
    }
}

/// The event of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditEvent {
    /// A claim was granted a lock.
    Granted,
    /// Its client did not receive the grant, which was rolled back.
    RolledBack,
    /// A request, or the end of a stream, released a lock.
    Released,
    /// An operator took a lock from its holders.
    Evicted,
    /// No rule or role permits the request.
    Refused,
    /// Changed keys are used.
    KeysReloaded,
    /// Changed keys cannot be used.
    KeysRefused,
}

impl AuditEvent {
    /// Every event.
    pub const ALL: [Self; 7] = [
        Self::Granted,
        Self::RolledBack,
        Self::Released,
        Self::Evicted,
        Self::Refused,
        Self::KeysReloaded,
        Self::KeysRefused,
    ];
}

/// One line. Fields that an event does not have are left out.
#[derive(Serialize)]
struct AuditLine<'a> {
    at: String,
    event: AuditEvent,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fencing_token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verb: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    evicted: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    evicted_total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl AuditLine<'_> {
    fn new(event: AuditEvent) -> Self {
        Self {
            at: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            event,
            principal: None,
            peer: None,
            request_id: None,
            name: None,
            fencing_token: None,
            by: None,
            verb: None,
            left_out: None,
            evicted: None,
            evicted_total: None,
            reason: None,
        }
    }
}

impl Audit {
    /// Writes the lines to this writer.
    #[must_use]
    pub fn to(output: LogWriter) -> Self {
        Self(Some(output))
    }

    /// Notes that the keys were read again after a change, and whether they could be used. The reason is in the log.
    pub fn keys_changed(&self, are_used: bool) {
        let event = match are_used {
            true => AuditEvent::KeysReloaded,
            false => AuditEvent::KeysRefused,
        };
        if let Some(output) = &self.0 {
            write(output, &AuditLine::new(event));
        }
    }

    /// The sender of a request, if there is an audit stream.
    pub(super) fn sender(&self, requester: &Requester) -> Option<AuditedSender> {
        let output = self.0.clone()?;
        Some(AuditedSender {
            output,
            principal: requester.principal.clone(),
            peer: requester.address(),
            request_id: requester.request_id.clone(),
        })
    }
}

/// A stream that holds a lock.
pub(super) struct AuditedStream {
    pub(super) sender: Option<AuditedSender>,
    pub(super) names: LockNames,
}

impl HoldObserver for AuditedStream {
    /// Notes the grant before the client can read of it, so that no line about its end comes first.
    fn granted(&self, granted: &Granted, unclaimed: UnclaimedLease) -> UnclaimedLease {
        match self.sender.clone() {
            Some(sender) => sender.granted(&self.names, granted, unclaimed),
            None => unclaimed,
        }
    }

    fn released(&self, fence: Fence) {
        if let Some(sender) = &self.sender {
            let (event, name) = (AuditEvent::Released, &self.names[0]);
            sender.write_about(event, name, Some(fence), Some("stream"));
        }
    }
}

impl AuditedSender {
    /// Notes new grants, and, if their client does not receive them, that they were rolled back.
    pub(super) fn granted(
        self,
        names: &LockNames,
        granted: &Granted,
        unclaimed: UnclaimedLease,
    ) -> UnclaimedLease {
        let fences = granted.leases.iter().map(|lease| lease.holder.fence);
        let locks: Vec<_> = names.iter().cloned().zip(fences).collect();
        for (name, fence) in &locks {
            self.write_about(AuditEvent::Granted, name, Some(*fence), None);
        }
        unclaimed.or_else(move || {
            for (name, fence) in &locks {
                self.write_about(AuditEvent::RolledBack, name, Some(*fence), None);
            }
        })
    }

    /// Notes the locks that became free, once the store has answered.
    pub(super) fn of_release(
        sender: Option<Self>,
        names: LockNames,
    ) -> impl FnOnce(&[Released]) + Send + 'static {
        move |released| {
            if let Some(sender) = sender {
                sender.released(&names, released);
            }
        }
    }

    fn released(&self, names: &LockNames, released: &[Released]) {
        for (name, released) in names.iter().zip(released) {
            if let Released::Freed { fence, .. } = released {
                self.write_about(AuditEvent::Released, name, *fence, None);
            }
        }
    }

    pub(super) fn evicted(&self, name: &LockName, evicted: &Evicted, reason: &str) {
        let holders = evicted.holders.listed.iter();
        self.write(AuditLine {
            name: Some(name.as_str()),
            evicted: Some(holders.map(|holder| holder.fence.get()).collect()),
            evicted_total: Some(evicted.holders.total),
            reason: Some(reason),
            ..AuditLine::new(AuditEvent::Evicted)
        });
    }

    /// Notes that no rule permits the verb, on this lock if there is one. Of many, some have no line.
    pub(super) fn refused(&self, verb: Verb, name: Option<&LockName>) {
        let left_out = match &self.principal {
            Some(principal) => principal.refusals().count(verb),
            None => Some(0),
        };
        let Some(left_out) = left_out else {
            return;
        };
        self.write(AuditLine {
            name: name.map(LockName::as_str),
            verb: Some(verb.as_str()),
            left_out: (left_out > 0).then_some(left_out),
            ..AuditLine::new(AuditEvent::Refused)
        });
    }

    fn write_about(
        &self,
        event: AuditEvent,
        name: &LockName,
        fence: Option<Fence>,
        by: Option<&'static str>,
    ) {
        self.write(AuditLine {
            name: Some(name.as_str()),
            fencing_token: fence.map(Fence::get),
            by,
            ..AuditLine::new(event)
        });
    }

    fn write(&self, line: AuditLine<'_>) {
        let line = AuditLine {
            principal: self.principal.as_ref().map(Principal::name),
            peer: self.peer.map(|peer| peer.to_string()),
            request_id: Some(self.request_id.as_str()),
            ..line
        };
        write(&self.output, &line);
    }
}

fn write(output: &LogWriter, line: &AuditLine<'_>) {
    let mut text = serde_json::to_vec(line).expect("it has string keys");
    text.push(b'\n');
    // The writer takes every line or drops it.
    let _ = output.clone().write_all(&text);
}
