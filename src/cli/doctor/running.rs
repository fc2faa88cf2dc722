//! The running service, if a flag or the environment names one.

use clap::ArgMatches;
use hyper::StatusCode;
use serde_json::Value;

use super::Diagnosis;
use crate::cli::service::{self, ClientError};
use crate::cli::{Environment, Exit};
use crate::client::{Call, Client, RetryPolicy, ServiceAnswer};

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) async fn check(matches: &ArgMatches, environment: &Environment) -> Vec<Diagnosis> {
    let client = match service::client_if_named(matches, environment) {
        None => return Vec::new(),
        Some(Ok(client)) => client,
        Some(Err(error)) => return vec![failed("service", &error)],
    };
    let mut found = Vec::new();
    if let Err(error) = ask(client, &mut found).await {
        found.push(failed("service", &error));
    }
    found
}

async fn ask(mut client: Client, found: &mut Vec<Diagnosis>) -> Result<(), ClientError> {
    let version = get(&mut client, "/version").await?;
    let url = client.url();
    let version = match version.body["version"].as_str() {
        Some(name) if version.status == StatusCode::OK => name.to_owned(),
        Some(_) | None => return Err(ClientError::refused(&version, url)),
    };
    found.push(match version == VERSION {
        true => Diagnosis::fine("service", format!("{url} is leasehold {version}")),
        false => Diagnosis::warning(
            "service",
            format!("{url} is leasehold {version}, and this is {VERSION}; use the same"),
        ),
    });
    let ready = get(&mut client, "/readyz?verbose").await?;
    if ready.status.is_success() && !ready.is_healthy() {
        return Err(ClientError::refused(&ready, client.url()));
    }
    let checks = ready.body["checks"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    found.extend(checks.iter().map(of_readiness));
    if !ready.status.is_success() {
        let text = "it is not ready; the findings above say why";
        found.push(Diagnosis::error("ready", text, Exit::Unreachable));
    }
    let locks = get(&mut client, "/locks?page_size=1").await?;
    service::expect(|answer| answer.is_lock_page("", ""), Ok(locks), &client)?;
    found.push(Diagnosis::fine(
        "key",
        "it may be used with this key, or needs none",
    ));
    Ok(())
}

async fn get(client: &mut Client, path: &str) -> Result<ServiceAnswer, ClientError> {
    // A missing answer is a finding, so nothing is repeated.
    let answered = client
        .send_repeatedly(&Call::get(path.to_owned()), RetryPolicy::Never)
        .await;
    answered.map_err(|error| ClientError::no_answer(&error))
}

fn of_readiness(check: &Value) -> Diagnosis {
    let text = |name: &str| check[name].as_str().unwrap_or_default();
    let name = format!("service, {}", text("name"));
    match check["ok"] == false {
        true => Diagnosis::warning(&name, text("detail")),
        false => Diagnosis::fine(&name, text("detail")),
    }
}

fn failed(check: &str, error: &ClientError) -> Diagnosis {
    Diagnosis::error(check, error.to_string(), error.exit())
}
