//! Runs within the command of another run of the same lock: they share its claim.
//!
//! A token that was inherited proves nothing: a daemon keeps its environment long after the run that set it. So a run
//! has a pipe, and names it in the environment of its command. A run within the command opens the pipe for writing,
//! which only works while the outer run is there; then it asks the service whether the claim holds, and re-enters. The
//! outer run releases the lock when no process has the pipe open any more, which the system notices however a process
//! ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use hyper::StatusCode;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::{self, pipe2};
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

use super::super::acquisition::AcquiredLease;
use super::super::arguments::ClaimOptions;
use super::super::boottime::BootTime;
use super::super::service::ClientError;
use super::super::{Environment, flags};
use super::{HOLD_COUNT_VARIABLE, NAME_VARIABLE, TOKEN_VARIABLE};
use crate::client::{Client, ClientClaim, RetryPolicy};
use crate::domain::{LockName, LockNames, Token};

/// Where the pipe of the innermost run is.
pub(super) const PIPE_VARIABLE: &str = "LEASEHOLD_RUN_PIPE";

/// The pipe of a run, from its own side.
pub(super) struct NestedRuns {
    reader: Receiver,
    /// The end by which the others find the pipe. Nothing is written to it.
    writer: OwnedFd,
}

/// The run that this one is within, whose pipe this one has open.
pub(super) struct OuterRun {
    claim: ClientClaim,
    depth: u16,
    pipe: File,
}

impl NestedRuns {
    pub(super) fn new() -> io::Result<Self> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        Ok(Self {
            reader: Receiver::from_owned_fd(reader)?,
            writer,
        })
    }

    /// Where the pipe is: process, descriptor, and the number that distinguishes this pipe from a later one there.
    pub(super) fn place(&self) -> io::Result<String> {
        let (process, descriptor) = (std::process::id(), self.writer.as_raw_fd());
        let inode = File::from(self.writer.try_clone()?).metadata()?.ino();
        Ok(format!("{process}:{descriptor}:{inode}"))
    }

    /// The reading end, where the file ends when no nested run goes on and this one has ended.
    pub(super) fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// From here on no run can join.
    pub(super) fn close(self) -> JoinedRuns {
        JoinedRuns(self.reader)
    }
}

/// The runs that joined before the pipe was closed to others.
pub(super) struct JoinedRuns(Receiver);

impl JoinedRuns {
    /// Returns when all of them have ended.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn ended(&mut self) {
        let mut buffer = [0; 64];
        while self.0.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
    }

    /// Whether all of them have ended. The runtime does not know yet that the file has ended, so this asks the system.
    pub(super) fn have_ended(&self) -> bool {
        let mut buffer = [0; 64];
        loop {
            match unistd::read(&self.0, &mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(errno) => return errno != Errno::EAGAIN,
            }
        }
    }
}

impl OuterRun {
    /// The run that has set the environment, if it is there and has these locks.
    ///
    /// # Errors
    /// It has some of them: waiting for the others while it holds these could last for ever.
    pub(super) fn find(
        names: &LockNames,
        environment: &Environment,
        client: &Client,
    ) -> Result<Option<Self>, ClientError> {
        let variable = |name| flags::variable(environment, name);
        let is_here = variable("LEASEHOLD_URL").is_some_and(|url| url == client.url().to_string());
        let outer = variable(NAME_VARIABLE).map(|names| {
            let names = names
                .split(' ')
                .map(|name| LockName::parse(name.as_bytes()));
            LockNames::several(names.collect::<Result<_, _>>().unwrap_or_default())
        });
        let token = variable(TOKEN_VARIABLE).map(|token| Token::parse(&token));
        let (true, Some(Ok(outer)), Some(Ok(token))) = (is_here, outer, token) else {
            return Ok(None);
        };
        let held = names.iter().filter(|name| outer.contains(name)).count();
        if held == 0 {
            return Ok(None);
        }
        let Some(pipe) = variable(PIPE_VARIABLE).and_then(|place| open_pipe(&place)) else {
            return Ok(None);
        };
        if held < names.len() {
            return Err(ClientError::Misused(
                "an outer `leasehold run` holds some of these locks; take all of them there, because waiting for one \
                 while holding another can wait for ever"
                    .to_owned(),
            ));
        }
        let depth = variable(HOLD_COUNT_VARIABLE).and_then(|depth| depth.parse().ok());
        Ok(Some(Self {
            claim: ClientClaim::new(outer, token),
            depth: depth.unwrap_or(1),
            pipe,
        }))
    }

    /// The depth at which the outer run holds.
    pub(super) fn depth(&self) -> u16 {
        self.depth
    }

    /// The outer run waits until this is closed.
    pub(super) fn pipe(&self) -> &File {
        &self.pipe
    }

    /// Holds the claim of the outer run one deeper; `None` if that run does not hold its locks any more.
    ///
    /// # Cancel safety
    /// The claim may be left one deeper, which the release by the outer run undoes.
    pub(super) async fn re_enter(
        &self,
        client: &mut Client,
        options: &ClaimOptions,
    ) -> Result<Option<AcquiredLease>, ClientError> {
        // A renewal never makes a lease. To acquire with the token of a claim that is over could make one.
        let renewed = client
            .send_repeatedly(&self.claim.renew(None), RetryPolicy::Always)
            .await;
        match renewed.map_err(|error| ClientError::no_answer(&error))? {
            answer if self.claim.renewed_lease_in(&answer).is_some() => {}
            answer if answer.status == StatusCode::PRECONDITION_FAILED && answer.is_refusal() => {
                return Ok(None);
            }
            answer => return Err(ClientError::refused(&answer, client.url())),
        }
        let mut fields = options.fields.clone();
        let hold_count = self.depth.saturating_add(1);
        fields.insert("hold_count".to_owned(), json!(hold_count));
        let sent_at = BootTime::now();
        let answer = client
            .send_repeatedly(&self.claim.acquire(&fields), RetryPolicy::Always)
            .await;
        let answer = answer.map_err(|error| ClientError::no_answer(&error))?;
        match (answer.status, self.claim.lease_in(&answer)) {
            (StatusCode::OK, Some(lease)) => {
                if sent_at.after(lease.valid_for / 2).has_passed() {
                    return Err(ClientError::Unreachable(format!(
                        "{} takes too long to answer for a TTL of {:?}",
                        client.url(),
                        lease.ttl
                    )));
                }
                Ok(Some(AcquiredLease {
                    claim: self.claim.clone(),
                    lease,
                    sent_at,
                    answer,
                }))
            }
            // The lease ended between the two requests. The outer run would know nothing of another one. What another
            // server answers is no reason to release the lock of the outer run.
            (StatusCode::CREATED | StatusCode::LOCKED, lease)
                if lease.is_some() || answer.is_refusal() =>
            {
                let release = self.claim.release(None);
                let _ = client.send_repeatedly(&release, RetryPolicy::Always).await;
                Ok(None)
            }
            (StatusCode::CONFLICT, _) if answer.code() == "claim_ended" => Ok(None),
            _ => Err(ClientError::refused(&answer, client.url())),
        }
    }
}

/// Opens the pipe of an outer run, if it is still there.
fn open_pipe(place: &str) -> Option<File> {
    let numbers: Vec<u64> = place
        .split(':')
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    let [process, descriptor, inode] = numbers[..] else {
        return None;
    };
    let path = format!("/proc/{process}/fd/{descriptor}");
    // Opening something else could have effects, so the name is looked at first.
    let target = std::fs::read_link(&path).ok()?;
    if target.to_str() != Some(&format!("pipe:[{inode}]")) {
        return None;
    }
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let pipe = options.open(path).ok()?;
    (pipe.metadata().ok()?.ino() == inode).then_some(pipe)
}
