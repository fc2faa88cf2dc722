//! What a node gets of a lease that a majority has renewed: the lease itself if it lacks it, the decided token, and the
//! changes that it has missed. Otherwise a lease that is renewed for long would lose one node after the other, and a
//! majority might have missed different changes of it. When that is done is in `renewal`.

mod held_before;
mod looking;
mod missed_changes;
mod options;

use std::iter::{repeat, zip};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub(super) use self::held_before::HeldBefore;
use super::drift::{Drift, TokenLead};
use super::lease;
use super::nodes::{NodeStore, Nodes};
use super::part_held::{PartHeld, renew_part_held};
use super::recording::changes;
use crate::domain::{
    Acquired, Attempt, Claim, Fence, GrantKind, LockNames, Refused, RenewOptions, Renewal, Renewed,
    Rollback, RollbackRight, Token,
};
use crate::store::StoreResult;
use crate::store::memory::wall_time;

/// What a majority holds, for nodes that do not.
#[derive(Debug)]
pub(super) struct Decided {
    /// What a node that lacks all leases grants. It fits the first, and the others if they [are alike](Self::are_alike).
    pub(super) claim: Claim,
    /// What a node that lacks the lease grants it to.
    attempt: Attempt,
    /// Whether an attempt may roll a lease back at a majority. Else nobody knows this one.
    is_withdrawable: bool,
    /// For each lock, what its holder is told of it.
    renewals: Vec<Renewal>,
    /// When the nodes were asked, and when that was decided.
    asked_at: Instant,
    since: Instant,
    /// Whether a majority has them so, apart from the tokens.
    is_agreed: bool,
    nodes: Arc<Nodes>,
    drift: Drift,
}

/// What became of an attempt to bring a node to what was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restored {
    /// The node has what it can have.
    Done,
    /// It lacks the lease: another claim is in the way there, or it grants nothing for at least this long.
    NotYet(Duration),
}

impl Restored {
    fn after(refused: &Refused) -> Self {
        match refused {
            // The node may have the lease by now, as it was before a change.
            Refused::Blocked(_) | Refused::Mismatched(_) => Self::NotYet(Duration::ZERO),
            Refused::Recovering { retry_in } => Self::NotYet(*retry_in),
            Refused::Ended(_) | Refused::TooManyWaiters { .. } | Refused::TooManyLeases { .. } => {
                Self::Done
            }
        }
    }
}

impl Decided {
    /// None if there is no lease.
    pub(super) fn new(
        nodes: &Arc<Nodes>,
        drift: Drift,
        (names, token): (&LockNames, Token),
        renewals: Vec<Renewal>,
        is_agreed: bool,
        asked_at: Instant,
    ) -> Option<Self> {
        let first = renewals.first()?;
        let (lease, options) = (&first.lease, first.options);
        let claim = Claim {
            mode: lease.holder.mode,
            // The claim has its locks, whoever waits for them there.
            fair: false,
            hold_count: lease.holder.hold_count,
            owner: lease.holder.owner.clone(),
            metadata: lease.holder.metadata.clone(),
            ..Claim::plain(names.clone(), token, lease.ttl)
        };
        Some(Self {
            // As the nodes have reported them.
            claim: Claim {
                min_hold: options.min_hold_left,
                max_hold: options.max_hold_left,
                lock_delay: options.lock_delay,
                takes_over: options.is_of_stream,
                ..drift.claim_at_nodes(&claim)
            },
            // A lease that no attempt may roll back stays so at each node: nobody knows a random one.
            attempt: first.withdrawable_by.unwrap_or_else(Attempt::random),
            is_withdrawable: renewals.iter().any(|it| it.withdrawable_by.is_some()),
            renewals,
            asked_at,
            since: Instant::now(),
            is_agreed,
            nodes: Arc::clone(nodes),
            drift,
        })
    }

    /// The same for some of the locks, by number. None if there are none.
    fn of_those(&self, is_one: impl Fn(usize) -> bool) -> Option<Self> {
        let locks = zip(self.claim.names.iter(), &self.renewals).enumerate();
        let those = locks.filter(|(number, _)| is_one(*number));
        let (names, renewals) = those
            .map(|(_, (name, it))| (name.clone(), it.clone()))
            .unzip();
        let names = LockNames::several(names).ok()?;
        let (claim, asked_at) = ((&names, self.claim.token), self.asked_at);
        let (nodes, is_agreed) = (&self.nodes, self.is_agreed);
        let those = Self::new(nodes, self.drift, claim, renewals, is_agreed, asked_at)?;
        Some(Self {
            since: self.since,
            ..those
        })
    }

    /// Whether one grant can give all leases.
    fn are_alike(&self) -> bool {
        let mut pairs = self.renewals.windows(2);
        pairs.all(|pair| terms(&pair[0]) == terms(&pair[1]))
    }

    /// Brings a node to what was decided, which has answered this to the renewal.
    pub(super) async fn restore(
        &self,
        node: &NodeStore,
        token_lead: &TokenLead,
        renewed: &Renewed,
        deadline: Instant,
    ) -> StoreResult<Restored> {
        match renewed {
            Renewed::Extended(renewals) => {
                self.bring_changes(node, renewals, deadline).await?;
                Ok(Restored::Done)
            }
            Renewed::NotHolder(lacking) if lacking.len() == self.renewals.len() => {
                self.put_back(node, token_lead, deadline).await
            }
            // It has refused to extend those that it has, and refuses to grant them together with the others.
            Renewed::NotHolder(_) => {
                let options = RenewOptions {
                    rollback_right: match self.is_withdrawable {
                        true => RollbackRight::AsBefore,
                        false => RollbackRight::default(),
                    },
                    ..RenewOptions::default()
                };
                let (names, token) = (&self.claim.names, self.claim.token);
                let held = renew_part_held(node, (names, token), options, deadline).await?;
                self.restore_rest(node, token_lead, &held, deadline).await
            }
            Renewed::Mismatched(_) => Ok(Restored::Done),
        }
    }

    /// The same for a node that has extended a part of the leases.
    pub(super) async fn restore_rest(
        &self,
        node: &NodeStore,
        token_lead: &TokenLead,
        held: &PartHeld,
        deadline: Instant,
    ) -> StoreResult<Restored> {
        if let Some(extended) = self.of_those(|number| held[number].is_some()) {
            let renewals: Vec<_> = held.iter().flatten().cloned().collect();
            extended.bring_changes(node, &renewals, deadline).await?;
        }
        match self.of_those(|number| held[number].is_none()) {
            Some(lacking) => lacking.put_back(node, token_lead, deadline).await,
            None => Ok(Restored::Done),
        }
    }

    /// Brings a node that has extended the leases what it has missed.
    async fn bring_changes(
        &self,
        node: &NodeStore,
        renewals: &[Renewal],
        deadline: Instant,
    ) -> StoreResult<()> {
        if self.is_agreed {
            self.bring_options(node, renewals, deadline).await?;
        }
        self.bring_tokens_and_terms(node, renewals, deadline).await
    }

    async fn bring_tokens_and_terms(
        &self,
        node: &NodeStore,
        renewals: &[Renewal],
        deadline: Instant,
    ) -> StoreResult<()> {
        let received_by = renewals.iter().map(|it| it.withdrawable_by);
        self.bring_tokens(node, &fences(renewals), received_by, deadline)
            .await?;
        if self.is_agreed {
            self.make_up(node, renewals, deadline).await?;
        }
        Ok(())
    }

    /// Has the decided tokens recorded at a node that has others, unless another attempt has received a lease there since: its
    /// process may have decided on the token that the node has.
    async fn bring_tokens(
        &self,
        node: &NodeStore,
        present: &[Fence],
        received_by: impl Iterator<Item = Option<Attempt>>,
        deadline: Instant,
    ) -> StoreResult<()> {
        let decided = fences(&self.renewals);
        if present == decided {
            return Ok(());
        }
        let mut changes = changes(present, &decided, true, None);
        for (change, received_by) in changes.iter_mut().zip(received_by) {
            change.attempt = received_by.or_else(|| Some(Attempt::random()));
            if received_by.is_none() {
                // Since a renewal, nobody lowers a token.
                change.decided = change.decided.max(change.proposed);
            }
        }
        if changes.iter().all(|it| it.proposed == it.decided) {
            return Ok(());
        }
        let assigned = node.assign_fences(&self.claim, &changes, deadline);
        assigned.await.map(drop)
    }

    /// Puts the leases back at a node that lacks them: together if nothing is in the way, else those that it can have.
    async fn put_back(
        &self,
        node: &NodeStore,
        token_lead: &TokenLead,
        deadline: Instant,
    ) -> StoreResult<Restored> {
        let count = self.renewals.len();
        if self.are_alike() {
            match self.grant(node, token_lead, deadline).await? {
                None => return Ok(Restored::Done),
                Some(Refused::Recovering { retry_in }) => return Ok(Restored::NotYet(retry_in)),
                Some(refused) if count == 1 => return Ok(Restored::after(&refused)),
                Some(_) => {}
            }
        }
        let mut restored = Restored::Done;
        for one in (0..count).filter_map(|one| self.of_those(|number| number == one)) {
            let refused = one.grant(node, token_lead, deadline).await?;
            let not_yet = refused.map(|it| Restored::after(&it));
            restored = not_yet
                .filter(|it| *it != Restored::Done)
                .unwrap_or(restored);
        }
        Ok(restored)
    }

    /// The claim with what is left of its limits by now; none if its `max_hold` is over.
    fn claim_as_left(&self) -> Option<Claim> {
        // They were left when the nodes answered.
        let is_left = |left: Duration| left.saturating_sub(self.asked_at.elapsed());
        let max_hold = self.claim.max_hold.map(is_left);
        (max_hold != Some(Duration::ZERO)).then(|| Claim {
            min_hold: self.claim.min_hold.map(is_left),
            max_hold,
            ..self.claim.clone()
        })
    }

    /// Has the node grant the leases, with the decided tokens, or tells why it does not.
    async fn grant(
        &self,
        node: &NodeStore,
        token_lead: &TokenLead,
        deadline: Instant,
    ) -> StoreResult<Option<Refused>> {
        let Some(claim) = self.claim_as_left() else {
            return Ok(None);
        };
        let acquired = node.acquire(&claim, self.attempt, None, deadline);
        let granted = match acquired.await? {
            Acquired::Granted(granted) => granted,
            Acquired::Refused(refused) => return Ok(Some(refused)),
            Acquired::Waiting(_) | Acquired::Superseded | Acquired::WaitExpired => return Ok(None),
        };
        let is_too_far = token_lead.is_too_far(&granted.leases, wall_time().unix_us());
        let is_of_other = granted.kind != GrantKind::New;
        // A node whose tokens are too large has no vote. If it failed before it has the decided token, a later renewal would find
        // its own. And a later attempt that has got the lease there meanwhile keeps the right to roll it back.
        let mut is_undone = is_too_far || is_of_other && self.is_withdrawable;
        if !is_too_far && !is_of_other {
            let present = lease::fences(&granted.leases);
            let received_by = repeat(Some(self.attempt));
            let brought = self.bring_tokens(node, &present, received_by, deadline);
            // If the node fails now, a later renewal brings it the tokens.
            let _ = brought.await;
            // Another process may have released the claim meanwhile, before the node had the lease.
            is_undone = self.is_over(deadline).await;
        }
        if !is_too_far && is_of_other && self.is_agreed {
            // A request that found the lease lacking there may have asked for something else.
            let held = zip(granted.leases, granted.options);
            let renewals = held.map(|(lease, options)| Renewal {
                remaining_before: lease.holder.expires_in,
                lease,
                options,
                withdrawable_by: Some(self.attempt),
            });
            let renewals: Vec<_> = renewals.collect();
            self.bring_options(node, &renewals, deadline).await?;
        }
        if is_undone {
            let undo = node.withdraw(&self.claim, self.attempt, Rollback::Undo, deadline);
            undo.await?;
        }
        Ok(None)
    }
}

/// What a claim asks for that is to get a lease like this one, and by whom.
fn terms(renewal: &Renewal) -> impl PartialEq + '_ {
    let (lease, holder) = (&renewal.lease, &renewal.lease.holder);
    let by = (&holder.owner, &holder.metadata, renewal.withdrawable_by);
    (
        holder.mode,
        holder.hold_count,
        lease.ttl,
        renewal.options,
        by,
    )
}

/// The tokens of the leases that a node has extended.
pub(super) fn fences(renewals: &[Renewal]) -> Vec<Fence> {
    lease::fences(renewals.iter().map(|renewal| &renewal.lease))
}
