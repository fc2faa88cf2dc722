//! Which service the client commands ask, with which key, and what its refusals mean for their exit codes.

use std::io;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::{Arg, ArgMatches, value_parser};
use hyper::StatusCode;

use super::{Environment, Exit, flags};
use crate::client::{Client, NoAnswer, ServiceAnswer, ServiceUrl};
use crate::config::Secret;

const URL_VARIABLE: &str = "LEASEHOLD_URL";
const KEY_VARIABLE: &str = "LEASEHOLD_API_KEY";
const KEY_FILE_VARIABLE: &str = "LEASEHOLD_API_KEY_FILE";

/// Why a client command failed. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("{0}")]
    Misused(String),
    #[error("{0}")]
    Misconfigured(String),
    #[error("{0}")]
    Busy(String),
    #[error("{0}")]
    Lost(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("the operating system refused a resource: {0}")]
    System(#[from] io::Error),
}

impl ClientError {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Misused(_) => Exit::Misused,
            Self::Misconfigured(_) => Exit::Misconfigured,
            Self::Busy(_) => Exit::Busy,
            Self::Lost(_) => Exit::Lost,
            Self::Unreachable(_) => Exit::Unreachable,
            Self::System(_) => Exit::Internal,
        }
    }

    /// The error for an answer that is neither what was asked for nor temporary.
    pub(super) fn refused(answer: &ServiceAnswer, url: &ServiceUrl) -> Self {
        let text = format!(
            "{url} answered {}: {}",
            answer.status.as_u16(),
            answer.detail()
        );
        match answer.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::Misconfigured(format!(
                "{text}; set {KEY_VARIABLE} or {KEY_FILE_VARIABLE} to a key of the service"
            )),
            StatusCode::LOCKED => Self::Busy(text),
            StatusCode::PRECONDITION_FAILED => Self::Lost(text),
            // Its claim was released or evicted by somebody else while it waited.
            StatusCode::CONFLICT if answer.code() == "claim_ended" => Self::Busy(text),
            // Not from Leasehold.
            _ if answer.code().is_empty() || answer.is_temporary() => {
                Self::Unreachable(format!("{text}; is this the URL of a Leasehold service?"))
            }
            _ => Self::Misused(text),
        }
    }

    pub(super) fn no_answer(error: &NoAnswer) -> Self {
        Self::Unreachable(format!(
            "{error}; start the service, or name another one with --url or {URL_VARIABLE}"
        ))
    }
}

/// `--url` and `--api-key-file`.
pub(super) fn arguments() -> [Arg; 2] {
    [
        Arg::new("url")
            .long("url")
            .value_name("URL")
            .value_parser(ValueParser::new(ServiceUrl::parse))
            .help_heading("Service")
            .help("The service to ask [env: LEASEHOLD_URL] [default: http://127.0.0.1:7625]"),
        Arg::new("api_key_file")
            .long("api-key-file")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help_heading("Service")
            .help("The file with the key [env: LEASEHOLD_API_KEY_FILE, or the key in LEASEHOLD_API_KEY]"),
    ]
}

/// The client for the service that flags and environment name.
pub(super) fn client(
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<Client, ClientError> {
    let url = match matches.get_one::<ServiceUrl>("url") {
        Some(url) => url.clone(),
        None => {
            let text = flags::variable(environment, URL_VARIABLE);
            let text = text.as_deref().unwrap_or(ServiceUrl::DEFAULT);
            ServiceUrl::parse(text).map_err(|problem| {
                ClientError::Misconfigured(format!("environment {URL_VARIABLE}: {problem}"))
            })?
        }
    };
    Ok(Client::new(url, key(matches, environment)?))
}

/// The variables by which commands that a command starts find the same service.
pub(super) fn variables(matches: &ArgMatches, client: &Client) -> Vec<(&'static str, String)> {
    let mut variables = vec![(URL_VARIABLE, client.url().to_string())];
    if let Some(file) = matches.get_one::<PathBuf>("api_key_file") {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        variables.push((KEY_FILE_VARIABLE, file.to_string_lossy().into_owned()));
    }
    variables
}

fn key(matches: &ArgMatches, environment: &Environment) -> Result<Option<Secret>, ClientError> {
    let by_variable = || flags::variable(environment, KEY_FILE_VARIABLE).map(PathBuf::from);
    let file = matches.get_one::<PathBuf>("api_key_file").cloned();
    let key = match file.or_else(by_variable) {
        Some(file) => Some(Secret::from_file(&file).map_err(ClientError::Misconfigured)?),
        None => flags::variable(environment, KEY_VARIABLE).map(Secret::new),
    };
    let is_sendable = |key: &Secret| key.expose().bytes().all(|byte| byte.is_ascii_graphic());
    match key {
        Some(key) if !is_sendable(&key) => Err(ClientError::Misconfigured(
            "the API key has a character that is not allowed in a header; use visible ASCII without spaces".to_owned(),
        )),
        key => Ok(key),
    }
}
