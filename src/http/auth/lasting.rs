//! The right to acquire of a request that lasts: keys and rules may change while it waits, or while a stream holds its
//! lock.

use crate::domain::{LockName, LockNames, Verb};
use crate::http::app::App;
use crate::http::audit::AuditedSender;
use crate::http::problem::{AccessRefusal, Problem};

use super::{Access, Principal, TokenFault, refusal};

/// The key or the certificate does not authenticate the sender of the request any more.
const REPLACED: &str = "the key or the client certificate of this request is no longer valid for the principal with which it \
                        began";
/// The token does not authenticate the sender any more.
const EXPIRED: &str = "the token of this request has expired while the request lasted, or its issuer no longer has the key of it";
/// The right was taken away for a moment, in which the request ended.
const RETURNED: &str = "the right to acquire this lock was taken away while the request lasted, and has come back; send the \
                        request again";

impl App {
    /// Checks by the current keys and rules that the sender of a request may still acquire these locks, as it might
    /// when the request began. Returns the sender with its current rights; `None` if nothing about it has changed.
    pub(in crate::http) fn permit_still(
        &self,
        principal: &Principal,
        names: &[LockName],
        audited: Option<&AuditedSender>,
    ) -> Result<Option<Principal>, Problem> {
        let Access::Keys(keys, _) = &self.settings().access else {
            return Ok(None);
        };
        if !principal.has_changed() {
            return Ok(None);
        }
        if principal.has_expired() {
            return Err(match principal.is_unknown() {
                true => Problem::token_refused(TokenFault::NoKeys),
                false => Problem::invalid_token(EXPIRED),
            });
        }
        let Some(now) = keys.current(principal) else {
            return Err(Problem::unauthorized(REPLACED));
        };
        let mut names = names.iter();
        let Some(name) = names.find(|name| !now.rights().permit(Verb::Acquire, name)) else {
            return Ok(Some(now));
        };
        if let Some(sender) = audited {
            sender.refused(Verb::Acquire, Some(name));
        }
        let locks = format!(" on {name}");
        Err(refusal(keys, &now, Verb::Acquire, &locks))
    }

    /// Completes when the sender may no longer acquire these locks. A change of the rules that leaves it this right changes
    /// nothing.
    pub(in crate::http) async fn revoked(self, mut principal: Principal, names: LockNames) {
        loop {
            principal.changed().await;
            match self.permit_still(&principal, &names, None) {
                Ok(Some(now)) => principal = now,
                // Only a sender that has changed gets here.
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    /// The problem of a request whose sender lost the right to acquire these locks.
    pub(in crate::http) fn revocation(
        &self,
        principal: Option<&Principal>,
        names: &[LockName],
        audited: Option<&AuditedSender>,
    ) -> Problem {
        let now = principal.map(|principal| self.permit_still(principal, names, audited));
        let problem = now.and_then(Result::err);
        problem.unwrap_or_else(|| Problem::forbidden(AccessRefusal::Rule, RETURNED))
    }
}
