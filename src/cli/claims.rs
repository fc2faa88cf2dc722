//! `leasehold acquire`, `renew` and `release`, for scripts that hold a lock from one command to another.

use std::os::unix::process::parent_id;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};

use super::acquisition::{Acquisition, AcquisitionEnd, shown};
use super::arguments::{self, ClaimHelp, ClaimOptions};
use super::output::{self, OutputForm};
use super::service::{self, ClientError};
use super::signals::ClientSignals;
use super::{Environment, Exit, flags, views};
use crate::client::{Client, ClientClaim, RetryPolicy, ServiceAnswer};
use crate::domain::Token;

const TOKEN_VARIABLE: &str = "LEASEHOLD_LOCK_TOKEN";

const FOR_SCRIPTS: ClaimHelp = ClaimHelp {
    ttl: "How long the lock stays taken unless it is renewed or released",
    min_hold: "Keep the lock taken at least this long, however soon it is released",
    owner: "Who holds the lock, for others to read [default: user@host:pid of the script]",
};

const OF_ACQUIRE: &str = "The token that `acquire` printed; the variable hides it from other users [env: LEASEHOLD_LOCK_TOKEN]";

const EXAMPLES: &str = "\
Examples:
  Wait for the lock, and keep its token:
    TOKEN=$(leasehold acquire backup --quiet) || exit
  Begin the TTL anew; 76 says that the lock is lost:
    leasehold renew backup --token \"$TOKEN\"
  Give the lock back:
    leasehold release backup --token \"$TOKEN\"

Nothing renews the lease but `leasehold renew`. To hold a lock for as long as a
command runs, use `leasehold run`.";

pub(super) fn commands() -> [Command; 3] {
    let acquire = Command::new("acquire")
        .about("Acquire a lock, and print the token of the claim")
        .after_help(EXAMPLES)
        .arg(arguments::names(
            "The lock; with several, all or none are taken",
        ))
        .args(arguments::of_claim(FOR_SCRIPTS))
        .arg(token_argument(
            "A UUID of your own as the token, to repeat or release a claim whose result is lost; other users of this machine can \
             read it meanwhile [default: a new one]",
        ))
        .args(output::arguments(
            "Print the grant as the service wrote it, as JSON",
            "Print only the token",
        ));
    let ttl = Arg::new("ttl")
        .long("ttl")
        .short('t')
        .value_name("DURATION")
        .value_parser(arguments::duration())
        .help("How long the lock stays taken from now on [default: as it was acquired for]");
    let renew = Command::new("renew")
        .about("Renew a lease: its TTL starts anew")
        .arg(arguments::names("The lock, or all locks of the claim"))
        .args([token_argument(OF_ACQUIRE), ttl])
        .args(output::arguments(
            "Print the lease as the service wrote it, as JSON",
            "Print nothing",
        ));
    let release = Command::new("release")
        .about("Release a lock, or leave its queue")
        .arg(arguments::names("The lock, or all locks of the claim"))
        .arg(token_argument(OF_ACQUIRE))
        .args(output::arguments(
            "Print nothing, because the service answers nothing",
            "Print nothing",
        ));
    [acquire, renew, release].map(|command| command.args(service::arguments()))
}

/// # Errors
/// The lock is busy, or there was no useful answer.
pub(super) fn acquire(
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<Exit, ClientError> {
    let options = ClaimOptions::parse(matches, environment, parent_id());
    let options = options.map_err(ClientError::Misused)?;
    let mut client = service::client(matches, environment)?;
    let form = OutputForm::of(matches);
    output::is_writable().map_err(|error| {
        ClientError::Internal(format!(
            "cannot write the token, so no lock was taken: {error}"
        ))
    })?;
    if options.token.is_none() && output::may_be_closed() {
        let text = "standard output is closed, or the null device: the token is lost, and the lock stays taken until its TTL is \
                    over; --token names one";
        form.notices().problem(text);
    }
    service::block_on(async {
        let mut signals = ClientSignals::listen()?;
        let acquisition = Acquisition::new(&mut client, &options, form.notices());
        let acquired = match acquisition.acquire(&mut signals).await? {
            AcquisitionEnd::Granted(acquired) => acquired,
            AcquisitionEnd::Stopped(signal) => return Ok(Exit::Command(128 + signal as u8)),
        };
        let text = match form {
            OutputForm::Quiet => format!("{}\n", acquired.claim.token().expose()),
            OutputForm::Json => output::document(&acquired.answer.text),
            OutputForm::Table => views::grants(&acquired.answer.body),
        };
        let Err(error) = output::write(&text) else {
            return Ok(Exit::Done);
        };
        if options.token.is_some() {
            return Err(ClientError::Internal(format!(
                "cannot write the grant, but the lock is held; release it with its token: {error}"
            )));
        }
        // Without its token the lock cannot be released.
        let _ = client
            .send_repeatedly(&acquired.claim.release(None), RetryPolicy::Always)
            .await;
        Err(ClientError::Internal(format!(
            "cannot write the token, so the lock was released: {error}"
        )))
    })
}

/// # Errors
/// The lease is lost, or there was no useful answer.
pub(super) fn renew(matches: &ArgMatches, environment: &Environment) -> Result<Exit, ClientError> {
    let (claim, mut client) = held(matches, environment)?;
    let form = OutputForm::of(matches);
    let ttl = matches.get_one::<Duration>("ttl").copied();
    service::block_on(async {
        let call = claim.renew(ttl);
        let answer = service::ask(&mut client, &call, RetryPolicy::Always, form.notices()).await;
        let is_renewal = |answer: &ServiceAnswer| claim.renewed_lease_in(answer).is_some();
        let answer = service::expect(is_renewal, answer, &client)?;
        Ok(match form {
            OutputForm::Quiet => Exit::Done,
            OutputForm::Json => output::show(&output::document(&answer.text)),
            OutputForm::Table => output::show(&views::grants(&answer.body)),
        })
    })
}

/// # Errors
/// The lease was lost before, or there was no useful answer.
pub(super) fn release(
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<Exit, ClientError> {
    let (claim, mut client) = held(matches, environment)?;
    let form = OutputForm::of(matches);
    service::block_on(async {
        let call = claim.release(None);
        let answer = service::ask(&mut client, &call, RetryPolicy::Always, form.notices()).await;
        service::expect(ServiceAnswer::is_release, answer, &client)?;
        Ok(match form {
            OutputForm::Quiet | OutputForm::Json => Exit::Done,
            OutputForm::Table => output::show(&format!("released {}\n", shown(claim.names()))),
        })
    })
}

fn token_argument(help: &'static str) -> Arg {
    Arg::new("token")
        .long("token")
        .value_name("TOKEN")
        .value_parser(|text: &str| Token::parse(text).map_err(|error| error.to_string()))
        .help(help)
}

/// The claim that the arguments name, and the client for its service.
fn held(
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<(ClientClaim, Client), ClientError> {
    let names = arguments::names_in(matches).map_err(ClientError::Misused)?;
    let by_variable = flags::variable(environment, TOKEN_VARIABLE);
    let token = match (matches.get_one::<Token>("token"), by_variable) {
        (Some(token), _) => *token,
        (None, Some(text)) => Token::parse(&text).map_err(|error| {
            ClientError::Misconfigured(format!("environment {TOKEN_VARIABLE}: {error}"))
        })?,
        (None, None) => {
            return Err(ClientError::Misused(format!(
                "the token is missing; set {TOKEN_VARIABLE} or --token to what `leasehold acquire --quiet` printed"
            )));
        }
    };
    let client = service::client(matches, environment)?;
    Ok((ClientClaim::new(names, token), client))
}
