//! `leasehold doctor`: checks what a server would be started with, and the running service if `--url` or
//! `LEASEHOLD_URL` names one. Each finding says what to do about it. The store is opened and used as a server does it,
//! so no check is written twice.

mod running;
mod store;
mod trial;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::Serialize;

use super::output::{self, Cell, TextTable};
use super::service::{self, ClientError};
use super::{Environment, Exit, flags};
use crate::config::{Config, Origin};

const AFTER_HELP: &str = "\
It takes a lock of its own in the store for a moment. With --url or LEASEHOLD_URL
it also asks that service.

Exit codes: 0 nothing is wrong, 1 something should be improved, 78 the
configuration is wrong or the store refuses it, 69 the store or the service does
not answer.";

/// One thing that was checked.
#[derive(Debug, Serialize)]
struct Diagnosis {
    check: String,
    status: Severity,
    /// The finding and, if it is not fine, what to do.
    finding: String,
    #[serde(skip)]
    exit: Exit,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    Ok,
    Warning,
    Error,
}

impl Diagnosis {
    fn new(check: &str, status: Severity, finding: impl Into<String>, exit: Exit) -> Self {
        Self {
            check: check.to_owned(),
            status,
            finding: finding.into(),
            exit,
        }
    }

    fn fine(check: &str, finding: impl Into<String>) -> Self {
        Self::new(check, Severity::Ok, finding, Exit::Done)
    }

    fn warning(check: &str, finding: impl Into<String>) -> Self {
        Self::new(check, Severity::Warning, finding, Exit::Failed)
    }

    fn error(check: &str, finding: impl Into<String>, exit: Exit) -> Self {
        Self::new(check, Severity::Error, finding, exit)
    }
}

pub(super) fn command() -> Command {
    let json = Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print a line of JSON for each finding: check, status, finding");
    Command::new("doctor")
        .about("Check the configuration, the store and the running service, and say what to do")
        .after_help(AFTER_HELP)
        .arg(json)
        .arg(service::url_argument(
            "The running service to ask as well [env: LEASEHOLD_URL]",
        ))
        .args(service::certificate_arguments())
        .defer(|doctor| doctor.args(flags::all()))
}

/// # Errors
/// The system refused a resource. What is wrong otherwise is a finding.
pub(super) fn run(matches: &ArgMatches, environment: &Environment) -> Result<Exit, ClientError> {
    let is_json = matches.get_flag("json");
    let loaded = Config::load(&flags::sources(matches, environment.clone()));
    service::block_on(async {
        let mut found = Vec::new();
        match &loaded {
            Ok((config, settings)) => {
                found.push(Diagnosis::fine("configuration", "it is valid"));
                let warnings = config.warnings().into_iter();
                found.extend(warnings.map(|text| Diagnosis::warning("configuration", text)));
                // The service has a store of its own. The default of this machine is not what it uses.
                let is_default = *settings.origin("store") == Origin::Default;
                if !(is_default && service::is_named(matches, environment)) {
                    found.extend(store::check(config).await);
                }
            }
            Err(error) => {
                let error = error.to_string();
                found.push(Diagnosis::error(
                    "configuration",
                    error,
                    Exit::Misconfigured,
                ));
            }
        }
        found.extend(running::check(matches, environment).await);
        Ok(report(&found, is_json))
    })
}

/// Prints the findings. The exit code is that of the first error, or says that there are warnings.
fn report(found: &[Diagnosis], is_json: bool) -> Exit {
    let text = match is_json {
        true => found.iter().map(json_line).collect(),
        false => TextTable::new(&["STATUS", "CHECK", "FINDING"]).text_of(rows(found)),
    };
    let shown = output::show(&text);
    if shown != Exit::Done {
        return shown;
    }
    let of = |status| found.iter().find(|diagnosis| diagnosis.status == status);
    let worst = of(Severity::Error).or_else(|| of(Severity::Warning));
    worst.map_or(Exit::Done, |diagnosis| diagnosis.exit)
}

fn rows(found: &[Diagnosis]) -> Vec<Vec<Cell>> {
    let row = |diagnosis: &Diagnosis| {
        let status = match diagnosis.status {
            Severity::Ok => Cell::good("ok"),
            Severity::Warning => Cell::doubtful("warning"),
            Severity::Error => Cell::bad("error"),
        };
        vec![
            status,
            Cell::from(&diagnosis.check),
            Cell::from(&diagnosis.finding),
        ]
    };
    found.iter().map(row).collect()
}

fn json_line(diagnosis: &Diagnosis) -> String {
    let line = serde_json::to_string(diagnosis);
    format!("{}\n", output::json(&line.expect("texts make JSON")))
}
