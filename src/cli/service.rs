//! The service that the client commands ask, their key, and the exit codes for its refusals.

use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use clap::builder::ValueParser;
use clap::{Arg, ArgMatches, value_parser};
use hyper::StatusCode;

use super::notices::Notices;
use super::{Environment, Exit, flags};
use crate::client::{
    Call, CertificateFiles, Client, NoAnswer, RetryPolicy, ServiceAnswer, ServiceUrl,
};
use crate::config::{ClientKey, Secret, certificates_in, check_variables};
use crate::domain::duration;

/// How long a command waits for an answer before it prints that the service does not answer.
pub(super) const NOTICE_AFTER: Duration = Duration::from_secs(1);
/// The question that ends the error for an answer of another server.
pub(super) const IS_IT_THE_URL: &str = "is this the URL of a Leasehold service?";
const URL_VARIABLE: &str = "LEASEHOLD_URL";
const CA_VARIABLE: &str = "LEASEHOLD_CA_FILE";
const CERT_VARIABLE: &str = "LEASEHOLD_CLIENT_CERT_FILE";
const CERT_KEY_VARIABLE: &str = "LEASEHOLD_CLIENT_KEY_FILE";
const KEY_VARIABLE: &str = "LEASEHOLD_API_KEY";
const KEY_FILE_VARIABLE: &str = "LEASEHOLD_API_KEY_FILE";
/// About how many files a command has open at a time, or fewer.
const OPEN_FILES: usize = 24;

/// Why a client command failed. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("{0}")]
    Misused(String),
    #[error("{0}")]
    Misconfigured(String),
    #[error("{0}")]
    Busy(String),
    /// Not [`Busy`](Self::Busy): perhaps no other process does the work meanwhile, so `run --skip-ok` must not hide it.
    #[error("{0}")]
    OverQuota(String),
    #[error("{0}")]
    Lost(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    Internal(String),
    #[error("the operating system refused a resource: {0}")]
    System(#[from] io::Error),
}

impl ClientError {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Misused(_) => Exit::Misused,
            Self::Misconfigured(_) => Exit::Misconfigured,
            Self::Busy(_) | Self::OverQuota(_) => Exit::Busy,
            Self::Lost(_) => Exit::Lost,
            Self::Unreachable(_) => Exit::Unreachable,
            Self::Internal(_) | Self::System(_) => Exit::Internal,
        }
    }

    /// The error for an answer that is neither the expected one nor temporary.
    pub(super) fn refused(answer: &ServiceAnswer, url: &ServiceUrl) -> Self {
        let text = format!(
            "{url} answered {}: {}",
            answer.status.as_u16(),
            answer.detail()
        );
        let text = match url.path() {
            "" => text,
            path if answer.status == StatusCode::NOT_FOUND => {
                format!("{text}; the path {path} in the URL of the service may be wrong")
            }
            _ => text,
        };
        match answer.status {
            StatusCode::FORBIDDEN if !answer.detail().ends_with("_key") => {
                Self::Misconfigured(text)
            }
            // The detail ends with the key that is needed; the one that was sent is valid.
            StatusCode::FORBIDDEN => Self::Misconfigured(format!(
                "{text}; give that key with --api-key-file, {KEY_VARIABLE} or {KEY_FILE_VARIABLE}"
            )),
            StatusCode::UNAUTHORIZED => Self::Misconfigured(format!(
                "{text}; set {KEY_VARIABLE} or {KEY_FILE_VARIABLE} to a key of the service, or give --api-key-file"
            )),
            _ if answer.status.is_success() => {
                Self::Unreachable(format!("{url}: {}", answer.problem()))
            }
            _ if !answer.is_refusal() => Self::Unreachable(format!("{text}; {IS_IT_THE_URL}")),
            StatusCode::LOCKED => Self::Busy(text),
            StatusCode::PRECONDITION_FAILED => Self::Lost(text),
            // Its claim was released or evicted by another while it waited.
            StatusCode::CONFLICT if answer.code() == "claim_ended" => Self::Busy(text),
            _ if answer.is_temporary() => {
                let when = match answer.retry_after {
                    Some(pause) if pause > Duration::from_secs(1) => {
                        format!("; it asks to try again in {}", duration::format(pause))
                    }
                    Some(_) | None => String::new(),
                };
                match answer.used_up_quota() {
                    Some(quota) => Self::OverQuota(format!("{text} (quota: {quota}){when}")),
                    None => Self::Unreachable(format!("{text}{when}")),
                }
            }
            _ => Self::Misused(text),
        }
    }

    /// The error for an answer that is not the expected one, although a server has answered that all went well.
    fn unexpected(answer: &ServiceAnswer, url: &ServiceUrl) -> Self {
        match answer.status.is_success() {
            true => Self::Unreachable(format!("{url}: {}", answer.problem())),
            false => Self::refused(answer, url),
        }
    }

    pub(super) fn no_answer(error: &NoAnswer) -> Self {
        match error {
            NoAnswer::CertificateMissing { .. } => Self::Misconfigured(format!(
                "{error}; name the files of one with --client-cert-file and --client-key-file, or with {CERT_VARIABLE} \
                 and {CERT_KEY_VARIABLE}"
            )),
            NoAnswer::UnknownAuthority { .. }
            | NoAnswer::Untrusted { .. }
            | NoAnswer::ExpectsTls { .. }
            | NoAnswer::CertificateRefused { .. } => {
                Self::Misconfigured(error.explain(&format!("--ca-file or {CA_VARIABLE}")))
            }
            NoAnswer::Connect { .. } | NoAnswer::TimedOut { .. } | NoAnswer::Broken { .. } => {
                Self::Unreachable(format!(
                    "{error}; start the service, or name another one with --url or {URL_VARIABLE}"
                ))
            }
        }
    }
}

/// `--url`, with its help.
pub(super) fn url_argument(help: &'static str) -> Arg {
    Arg::new("url")
        .long("url")
        .value_name("URL")
        .value_parser(ValueParser::new(ServiceUrl::parse))
        .help_heading("Service")
        .help(help)
}

/// `--url`, and the files of certificates and of the key.
pub(super) fn arguments() -> [Arg; 5] {
    let url =
        url_argument("The service to ask [env: LEASEHOLD_URL] [default: http://127.0.0.1:7625]");
    let [ca, certificate, certificate_key] = certificate_arguments();
    let key = file_argument(
        "api_key_file",
        "api-key-file",
        "The file with the key [env: LEASEHOLD_API_KEY_FILE, or the key in LEASEHOLD_API_KEY]",
    );
    [url, ca, certificate, certificate_key, key]
}

/// The files of certificates.
pub(super) fn certificate_arguments() -> [Arg; 3] {
    [
        file_argument(
            "ca_file",
            "ca-file",
            "For https: the certificates of the only authorities to trust, in PEM form [env: LEASEHOLD_CA_FILE] [default: those of the system]",
        ),
        file_argument(
            "client_cert_file",
            "client-cert-file",
            "For https: the certificate to show to a service that asks for one, in PEM form [env: LEASEHOLD_CLIENT_CERT_FILE]",
        ),
        file_argument(
            "client_key_file",
            "client-key-file",
            "The private key of that certificate [env: LEASEHOLD_CLIENT_KEY_FILE]",
        ),
    ]
}

fn file_argument(id: &'static str, flag: &'static str, help: &'static str) -> Arg {
    Arg::new(id)
        .long(flag)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help_heading("Service")
        .help(help)
}

/// The client for the service that flags and environment name.
pub(super) fn client(
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<Client, ClientError> {
    let key_file = matches.get_one::<PathBuf>("api_key_file").cloned();
    ServiceOptions::of(matches, key_file).client(environment)
}

/// The client for the service that a flag or the environment names, if one of them does. `--api-key-file` is that of the
/// configuration, whose key clients send.
pub(super) fn client_if_named(
    matches: &ArgMatches,
    environment: &Environment,
) -> Option<Result<Client, ClientError>> {
    let key_file = matches.get_one::<String>("api_key_file").map(PathBuf::from);
    let options = ServiceOptions::of(matches, key_file);
    is_named(matches, environment).then(|| options.client(environment))
}

/// Whether a flag or the environment names a service.
pub(super) fn is_named(matches: &ArgMatches, environment: &Environment) -> bool {
    matches.contains_id("url") || environment.iter().any(|(name, _)| name == URL_VARIABLE)
}

/// The flags; the environment has the rest.
struct ServiceOptions {
    url: Option<ServiceUrl>,
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    cert_key_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

impl ServiceOptions {
    fn of(matches: &ArgMatches, key_file: Option<PathBuf>) -> Self {
        let file = |name| matches.get_one::<PathBuf>(name).cloned();
        Self {
            url: matches.get_one::<ServiceUrl>("url").cloned(),
            ca_file: file("ca_file"),
            cert_file: file("client_cert_file"),
            cert_key_file: file("client_key_file"),
            key_file,
        }
    }

    fn client(self, environment: &Environment) -> Result<Client, ClientError> {
        check_variables(environment)
            .map_err(|error| ClientError::Misconfigured(error.to_string()))?;
        let file = |name| flags::variable(environment, name).map(PathBuf::from);
        let url = match self.url {
            Some(url) => url,
            None => url_in(environment)?,
        };
        let key_file = self.key_file.or_else(|| file(KEY_FILE_VARIABLE));
        let key = key(key_file, environment)?;
        let (mut authorities, mut certificate) = (None, None);
        if url.is_encrypted() {
            let ca_file = self.ca_file.or_else(|| file(CA_VARIABLE));
            let read = ca_file.map(|file| certificates_in(&file)).transpose();
            authorities = read.map_err(ClientError::Misconfigured)?;
            certificate = certificate_files(
                self.cert_file.or_else(|| file(CERT_VARIABLE)),
                self.cert_key_file.or_else(|| file(CERT_KEY_VARIABLE)),
            )?;
        }
        Client::new(url, key, authorities.as_deref(), certificate)
            .map_err(ClientError::Misconfigured)
    }
}

fn certificate_files(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
) -> Result<Option<CertificateFiles>, ClientError> {
    let missing = match (certificate, key) {
        (Some(certificate), Some(key)) => return Ok(Some(CertificateFiles { certificate, key })),
        (None, None) => return Ok(None),
        (Some(_), None) => format!("--client-key-file or {CERT_KEY_VARIABLE}"),
        (None, Some(_)) => format!("--client-cert-file or {CERT_VARIABLE}"),
    };
    Err(ClientError::Misconfigured(format!(
        "a certificate and its key belong together; set {missing} too"
    )))
}

/// The URL in the environment, or the default. An empty one is refused: another service than the one that was meant would
/// grant the lock, too.
fn url_in(environment: &Environment) -> Result<ServiceUrl, ClientError> {
    let set = environment.iter().find(|(name, _)| name == URL_VARIABLE);
    let text = set.map(|(_, value)| value.to_string_lossy());
    let text = text.as_deref().unwrap_or(ServiceUrl::DEFAULT);
    let url = match text {
        "" => Err(format!(
            "it is empty; unset it, or write one like {}",
            ServiceUrl::DEFAULT
        )),
        text => ServiceUrl::parse(text),
    };
    url.map_err(|problem| {
        ClientError::Misconfigured(format!("environment {URL_VARIABLE}: {problem}"))
    })
}

/// Runs a command's requests.
pub(super) fn block_on(
    requests: impl Future<Output = Result<Exit, ClientError>>,
) -> Result<Exit, ClientError> {
    // The runtime panics where it finds none left, so this asks first.
    let stderr = io::stderr();
    let files = (0..OPEN_FILES).map(|_| stderr.as_fd().try_clone_to_owned());
    drop(files.collect::<io::Result<Vec<_>>>()?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(requests)
}

/// Sends a request, and repeats it while there is no useful answer. It says so when that takes long.
pub(super) async fn ask(
    client: &mut Client,
    call: &Call,
    repeat: RetryPolicy,
    notices: Notices,
) -> Result<ServiceAnswer, NoAnswer> {
    let url = client.url().to_string();
    let mut answer = pin!(client.send_repeatedly(call, repeat));
    if let Ok(answered) = tokio::time::timeout(NOTICE_AFTER, &mut answer).await {
        return answered;
    }
    notices.note(&format!("no useful answer from {url} yet; still trying"));
    answer.await
}

/// The answer, if it is one that is expected.
pub(super) fn expect(
    is_expected: impl Fn(&ServiceAnswer) -> bool,
    answered: Result<ServiceAnswer, NoAnswer>,
    client: &Client,
) -> Result<ServiceAnswer, ClientError> {
    match answered {
        Ok(answer) if is_expected(&answer) => Ok(answer),
        Ok(answer) => Err(ClientError::unexpected(&answer, client.url())),
        Err(error) => Err(ClientError::no_answer(&error)),
    }
}

/// The variables by which commands that a command starts find the same service.
pub(super) fn variables(matches: &ArgMatches, client: &Client) -> Vec<(&'static str, String)> {
    let mut variables = vec![(URL_VARIABLE, client.url().to_string())];
    for (name, variable) in [
        ("api_key_file", KEY_FILE_VARIABLE),
        ("ca_file", CA_VARIABLE),
        ("client_cert_file", CERT_VARIABLE),
        ("client_key_file", CERT_KEY_VARIABLE),
    ] {
        if let Some(file) = matches.get_one::<PathBuf>(name) {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            variables.push((variable, file.to_string_lossy().into_owned()));
        }
    }
    variables
}

fn key(file: Option<PathBuf>, environment: &Environment) -> Result<Option<ClientKey>, ClientError> {
    let in_variable = || flags::variable(environment, KEY_VARIABLE).map(Secret::from_variable);
    let key = match file {
        Some(file) => Some(ClientKey::from_file(file)),
        None => in_variable().map(ClientKey::new),
    };
    key.transpose().map_err(ClientError::Misconfigured)
}
