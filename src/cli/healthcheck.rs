//! `leasehold healthcheck`: asks a running server whether it is ready, for images that have neither curl nor a shell.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command, value_parser};
use http_body_util::Full;
use hyper::header::HOST;
use hyper::{Request, Uri};
use rustls::ClientConfig;
use serde_json::Value;
use tokio_rustls::TlsConnector;

use super::service::{ClientError, IS_IT_THE_URL};
use super::{CliError, Environment, Exit, flags, output};
use crate::client::{self, HttpConnection, NoAnswer, ServiceAnswer, ServiceUrl, completed};
use crate::config::{Config, ListenAddress, ProbeTarget, certificates_in};
use crate::domain::duration;
use crate::tls;

/// The path that is asked for unless the URL has another one.
const READINESS: &str = "/readyz";

/// Why the server is considered unhealthy.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unhealthy {
    #[error("{url} did not answer within {timeout:?}")]
    TimedOut { url: String, timeout: Duration },
    /// It is not trusted, wants a certificate, or only one side speaks TLS.
    #[error("{0}")]
    Distrusted(String),
    #[error("{url} cannot be reached: {error}")]
    Unreachable { url: String, error: io::Error },
    /// The text is the status, and the failed checks if the answer has any.
    #[error("{url} answered {text}")]
    Refused { url: String, text: String },
}

impl Unhealthy {
    fn distrusted(reason: NoAnswer) -> Self {
        let wants_certificate = matches!(reason, NoAnswer::CertificateMissing { .. });
        Self::Distrusted(match wants_certificate {
            true => format!("{reason}; ask its server.admin_listen, which wants none"),
            false => reason.explain("--ca-file"),
        })
    }
}

pub(super) fn command() -> Command {
    let url = Arg::new("url")
        .long("url")
        .value_name("URL")
        .value_parser(Probe::parse)
        .help("The URL of a probe, such as /livez, instead of /readyz of the configured address; without a path, /readyz is added");
    let timeout = Arg::new("timeout")
        .long("timeout")
        .value_name("DURATION")
        .default_value("2s")
        .value_parser(|text: &str| duration::parse(text).map_err(|error| error.to_string()))
        .help("How long to wait for the response");
    let ca_file = Arg::new("ca_file")
        .long("ca-file")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .requires("url")
        .help("With --url https://…: the certificates of the only authorities to trust, in PEM form [default: those of the system]");
    Command::new("healthcheck")
        .about("Ask a running server whether it is ready: exit 0, or 1 with the reason")
        .args([url, ca_file, timeout])
        .defer(|healthcheck| healthcheck.args(flags_of_its_server()))
}

/// All flags of the server are accepted. The address and the file are used, so only these are in the help.
fn flags_of_its_server() -> impl Iterator<Item = Arg> {
    flags::all().into_iter().map(|flag| {
        let is_used = ["config", "listen"].contains(&flag.get_id().as_str());
        flag.hide(!is_used)
    })
}

pub(super) fn run(matches: &ArgMatches, environment: Environment) -> Result<Exit, CliError> {
    let timeout = *matches
        .get_one::<Duration>("timeout")
        .expect("it has a default");
    let probe = match matches.get_one::<Probe>("url") {
        Some(probe) => {
            let ca_file = matches.get_one::<PathBuf>("ca_file");
            let probe = probe.clone().trusting(ca_file.map(PathBuf::as_path));
            probe.map_err(ClientError::Misconfigured)?
        }
        None => Probe::of(&Config::probed(&flags::sources(matches, environment))?)
            .map_err(ClientError::System)?,
    };
    let url = probe.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| Unhealthy::Unreachable {
        url: url.clone(),
        error,
    })?;
    let answer = runtime.block_on(async { tokio::time::timeout(timeout, probe.answer()).await });
    match answer {
        Err(_) => Err(Unhealthy::TimedOut { url, timeout }.into()),
        Ok(Err(unhealthy)) => Err(unhealthy.into()),
        Ok(Ok(answer)) if answer.is_healthy() => {
            // The exit code says it.
            let _ = output::write("healthy\n");
            Ok(Exit::Done)
        }
        Ok(Ok(answer)) => {
            let reason = match answer.status.is_success() {
                true => format!("; {IS_IT_THE_URL}"),
                false => failed_checks(&answer.body),
            };
            let text = answer.status.to_string() + &reason;
            Err(Unhealthy::Refused { url, text }.into())
        }
    }
}

/// The request, and its address.
#[derive(Debug, Clone)]
struct Probe {
    service: ServiceUrl,
    path: String,
    tls: Option<Arc<ClientConfig>>,
}

impl Probe {
    /// Parses a URL. Without a path it is that of the readiness.
    fn parse(text: &str) -> Result<Self, String> {
        let readiness = |service| Self {
            service,
            path: READINESS.to_owned(),
            tls: None,
        };
        if text.starts_with("unix:") {
            return ServiceUrl::parse(text).map(readiness);
        }
        let url = completed(text);
        let url = url.parse::<Uri>().map_err(|error| error.to_string())?;
        let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
            return Err("write one like http://127.0.0.1:7625/readyz".to_owned());
        };
        let service = ServiceUrl::parse(&format!("{scheme}://{authority}"))?;
        Ok(match (url.path(), url.query()) {
            // The index at `/` responds even when the server is not ready.
            ("" | "/", None) => readiness(service),
            _ => Self {
                path: url
                    .path_and_query()
                    .map_or("/", |path| path.as_str())
                    .to_owned(),
                ..readiness(service)
            },
        })
    }

    /// The same, which verifies the certificate of a service with TLS.
    fn trusting(mut self, ca_file: Option<&Path>) -> Result<Self, String> {
        if self.service.is_encrypted() {
            let authorities = ca_file.map(certificates_in).transpose()?;
            let roots = tls::trusted(authorities.as_deref())?;
            let config = tls::client_config(roots, None).map_err(|error| error.to_string())?;
            self.tls = Some(Arc::new(config));
        }
        Ok(self)
    }

    /// The readiness of a server. One that listens on the unspecified address is asked over loopback, because nothing can
    /// connect to the unspecified address itself.
    fn of(probed: &ProbeTarget) -> io::Result<Self> {
        let tls = probed.has_tls.then(tls::config_for_probe).transpose();
        let tls = tls.map_err(io::Error::other)?.map(Arc::new);
        let service = match &probed.address {
            ListenAddress::Unix(_) => probed.address.to_string(),
            ListenAddress::Tcp(listen) => {
                let ip: IpAddr = match listen {
                    SocketAddr::V4(v4) if v4.ip().is_unspecified() => Ipv4Addr::LOCALHOST.into(),
                    SocketAddr::V6(v6) if v6.ip().is_unspecified() => Ipv6Addr::LOCALHOST.into(),
                    SocketAddr::V4(_) | SocketAddr::V6(_) => listen.ip(),
                };
                let scheme = if probed.has_tls { "https" } else { "http" };
                format!("{scheme}://{}", SocketAddr::new(ip, listen.port()))
            }
        };
        Ok(Self {
            service: ServiceUrl::parse(&service).expect("an address makes a URL"),
            path: READINESS.to_owned(),
            tls,
        })
    }

    /// Sends a GET and reads the answer.
    async fn answer(&self) -> Result<ServiceAnswer, Unhealthy> {
        let path = match self.path.as_str() {
            // The answer then has the reason.
            READINESS => "/readyz?verbose",
            path => path,
        };
        let request = Request::get(path).header(HOST, self.service.host_header());
        let request = request.body(Full::default());
        let request = request.map_err(|error| self.unreachable(io::Error::other(error)))?;
        let tls = self.tls.clone().map(TlsConnector::from);
        let opened = HttpConnection::open(&self.service, tls.as_ref()).await;
        let mut connection = opened.map_err(|error| {
            let problem = client::problem_without_certificate(&error, self.service.to_string());
            problem.map_or_else(|| self.unreachable(error), Unhealthy::distrusted)
        })?;
        let answer = connection.exchange(request).await;
        let (status, headers, body) = answer.map_err(|error| self.broken(&error))?;
        Ok(ServiceAnswer::new(status, &headers, body))
    }

    fn broken(&self, error: &hyper::Error) -> Unhealthy {
        let url = self.service.to_string();
        let problem = match client::expects_tls(error) {
            true => Some(NoAnswer::ExpectsTls { url }),
            // With TLS 1.3 the service wants a certificate only after the handshake of this side.
            false => client::problem_without_certificate(error, url),
        };
        match problem {
            Some(problem) => Unhealthy::distrusted(problem),
            None => self.unreachable(io::Error::other(client::root_cause(error))),
        }
    }

    fn unreachable(&self, error: io::Error) -> Unhealthy {
        let url = self.to_string();
        Unhealthy::Unreachable { url, error }
    }
}

/// As it is shown: the path of a socket is no place for another path.
impl fmt::Display for Probe {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.service.socket() {
            Some(_) => self.service.fmt(formatter),
            None => write!(formatter, "{}{}", self.service, self.path),
        }
    }
}

/// The names and findings of the failed checks in the body of `/readyz?verbose`, after a colon.
fn failed_checks(body: &Value) -> String {
    let checks = body["checks"].as_array().map_or(&[][..], Vec::as_slice);
    let failed = checks.iter().filter(|check| check["ok"] == false);
    let failed: Vec<String> = failed
        .filter_map(|check| {
            let (name, detail) = (check["name"].as_str()?, check["detail"].as_str()?);
            Some(format!("{name}: {detail}"))
        })
        .collect();
    match failed.is_empty() {
        true => String::new(),
        false => format!(": {}", failed.join("; ")),
    }
}
