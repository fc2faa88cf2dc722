//! `leasehold get`, `ls` and `evict`: the commands of operators.

use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use hyper::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;

use super::output::{self, OutputForm};
use super::service::{self, ClientError};
use super::{Environment, Exit, arguments, views};
use crate::client::{Call, RetryPolicy, ServiceAnswer};
use crate::domain::LockName;

/// How many locks to ask for at once: as many as the service gives.
const PAGE_SIZE: usize = 1000;

const LS_HELP: &str = "\
A lock that has no holder and only stays closed for a while is not listed.
`leasehold get NAME` shows it as cooling.";

pub(super) fn commands() -> [Command; 3] {
    let get = Command::new("get")
        .about("Show a lock: its state, its holders, and how many wait")
        .arg(name_argument("The lock"))
        .args(output::arguments(
            "Print the lock as the service wrote it, as JSON",
            "Print only the state: free, held or cooling",
        ));
    let prefix = Arg::new("prefix")
        .value_name("PREFIX")
        .default_value("")
        .hide_default_value(true)
        .help("The beginning of the names; all locks without it");
    let ls = Command::new("ls")
        .about("List the locks that are held or waited for")
        .after_help(LS_HELP)
        .arg(prefix)
        .args(output::arguments(
            "Print each page as the service wrote it, as a line of JSON",
            "Print only the names",
        ));
    let reason = Arg::new("reason")
        .long("reason")
        .value_name("TEXT")
        .help("The reason, for the evicted holders and the log of the service");
    let evict = Command::new("evict")
        .about("Take a lock away from all who hold it, without a prompt; print who they were")
        .arg(name_argument("The lock"))
        .arg(reason)
        .args(output::arguments(
            "Print the answer as the service wrote it, as JSON",
            "Print nothing",
        ));
    [get, ls, evict].map(|command| command.args(service::arguments()))
}

/// # Errors
/// There was no useful answer.
pub(super) fn get(matches: &ArgMatches, environment: &Environment) -> Result<Exit, ClientError> {
    let name = name_in(matches);
    let call = Call::of_lock(Method::GET, name);
    let mut client = service::client(matches, environment)?;
    let form = OutputForm::of(matches);
    service::block_on(async {
        let answer = service::ask(&mut client, &call, RetryPolicy::Always, form.notices()).await;
        let answer = service::expect(|answer| answer.is_lock(name), answer, &client)?;
        Ok(match form {
            OutputForm::Json => output::show(&output::document(&answer.text)),
            OutputForm::Quiet => {
                let state = answer.body["state"].as_str().unwrap_or_default();
                output::show(&format!("{state}\n"))
            }
            OutputForm::Table => {
                let rows = views::lock_rows(&answer.body, Duration::ZERO, usize::MAX);
                output::show(&views::lock_table().text_of(rows))
            }
        })
    })
}

/// # Errors
/// There was no useful answer.
pub(super) fn ls(matches: &ArgMatches, environment: &Environment) -> Result<Exit, ClientError> {
    let prefix = matches
        .get_one::<String>("prefix")
        .expect("it has a default");
    let mut client = service::client(matches, environment)?;
    let form = OutputForm::of(matches);
    let mut table = views::lock_table();
    service::block_on(async {
        let mut page_token = String::new();
        loop {
            let call = Call::get(page_path(prefix, &page_token));
            let answer =
                service::ask(&mut client, &call, RetryPolicy::Always, form.notices()).await;
            let is_page = |answer: &ServiceAnswer| answer.is_lock_page(prefix, &page_token);
            let answer = service::expect(is_page, answer, &client)?;
            let locks = answer.body["locks"]
                .as_array()
                .map_or(&[][..], Vec::as_slice);
            let text = match form {
                OutputForm::Json => output::document(&answer.text),
                OutputForm::Quiet => {
                    let names = locks.iter().filter_map(|lock| lock["name"].as_str());
                    names.map(|name| format!("{name}\n")).collect()
                }
                OutputForm::Table => {
                    let rows = |lock| views::lock_rows(lock, Duration::ZERO, 1);
                    table.text_of(locks.iter().flat_map(rows).collect())
                }
            };
            // A reader that has seen enough (`| head`) needs no further page.
            if let Err(error) = output::write(&text) {
                return Ok(output::after_failure(&error));
            }
            answer.body["next_page_token"]
                .as_str()
                .unwrap_or_default()
                .clone_into(&mut page_token);
            if page_token.is_empty() {
                return Ok(Exit::Done);
            }
        }
    })
}

/// # Errors
/// The key does not allow it, or there was no useful answer.
pub(super) fn evict(matches: &ArgMatches, environment: &Environment) -> Result<Exit, ClientError> {
    let name = name_in(matches);
    let mut fields = json!({"force": true});
    if let Some(reason) = matches.get_one::<String>("reason") {
        fields["reason"] = json!(reason);
    }
    let call = Call {
        fields,
        ..Call::of_lock(Method::DELETE, name)
    };
    let mut client = service::client(matches, environment)?;
    let form = OutputForm::of(matches);
    service::block_on(async {
        // A repetition could evict claims that were granted the lock since.
        let answer = service::ask(
            &mut client,
            &call,
            RetryPolicy::IfNotExecuted,
            form.notices(),
        )
        .await;
        let is_unclear = match &answer {
            Ok(answer) if answer.is_refusal() => answer.body["outcome"] == "unknown",
            // A gateway may answer for a service that has executed it, but a refusal of another server is one.
            Ok(answer) => !answer.status.is_client_error(),
            Err(error) => !error.was_not_sent(),
        };
        let answered = service::expect(ServiceAnswer::is_eviction, answer, &client);
        if let (Err(ClientError::Unreachable(text)), true) = (&answered, is_unclear) {
            return Err(ClientError::Unreachable(format!(
                "{text}; whether anybody was evicted is unknown: look with `leasehold get {}`",
                name.as_str()
            )));
        }
        let answer = answered?;
        Ok(match form {
            OutputForm::Quiet => Exit::Done,
            OutputForm::Json => output::show(&output::document(&answer.text)),
            OutputForm::Table if answer.body["evicted_total"] == 0 => {
                let call = Call::of_lock(Method::GET, name);
                let lock = client.send_repeatedly(&call, RetryPolicy::Never).await.ok();
                let free_in_ms = lock.and_then(|lock| lock.body["free_in_ms"].as_u64());
                output::show(&views::not_held(name.as_str(), free_in_ms))
            }
            OutputForm::Table => output::show(&views::evicted(name.as_str(), &answer.body)),
        })
    })
}

fn page_path(prefix: &str, page_token: &str) -> String {
    let [prefix, page_token] =
        [prefix, page_token].map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC));
    format!("/locks?prefix={prefix}&page_size={PAGE_SIZE}&page_token={page_token}")
}

fn name_argument(help: &'static str) -> Arg {
    Arg::new("name")
        .value_name("NAME")
        .required(true)
        .value_parser(arguments::lock_name())
        .help(help)
}

fn name_in(matches: &ArgMatches) -> &LockName {
    matches.get_one("name").expect("it is required")
}
