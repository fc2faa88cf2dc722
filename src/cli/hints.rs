//! Tips for arguments that clap refuses, where it cannot know what the user meant.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::config::key_meant_by;

/// Other programs' names for `serve`.
const LIKE_SERVE: [&str; 4] = ["start", "run", "server", "up"];

/// Adds the flag, the command or the syntax that was probably meant.
pub(super) fn add_to(refusal: &mut clap::Error) {
    match (refusal.kind(), invalid(refusal)) {
        (ErrorKind::UnknownArgument, Some(name)) => {
            let meant = name.strip_prefix("--").and_then(key_meant_by);
            if let Some(key) = meant.filter(|key| super::flags::has_flag(key)) {
                let flag = ContextValue::String(format!("--{}", key.flag()));
                refusal.insert(ContextKind::SuggestedArg, flag);
            }
        }
        (ErrorKind::InvalidSubcommand, Some(name)) if LIKE_SERVE.contains(&name.as_str()) => {
            let serve = ContextValue::Strings(vec!["serve".to_owned()]);
            refusal.insert(ContextKind::SuggestedSubcommand, serve);
        }
        (ErrorKind::ArgumentConflict, Some(name)) if name == "true" || name == "false" => {
            add_tip(
                refusal,
                format!("a flag that is true or false needs '=', as in '--flag={name}'"),
            );
        }
        (ErrorKind::ArgumentConflict, Some(name)) => {
            add_tip(
                refusal,
                format!("flags follow the command, as in 'leasehold {name} --flag'"),
            );
        }
        _ => {}
    }
}

fn add_tip(refusal: &mut clap::Error, tip: String) {
    let tip = ContextValue::StyledStrs(vec![tip.into()]);
    refusal.insert(ContextKind::Suggested, tip);
}

/// The argument that was refused.
fn invalid(refusal: &clap::Error) -> Option<String> {
    let kinds = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg];
    kinds.iter().find_map(|kind| match refusal.get(*kind) {
        Some(ContextValue::String(name)) => Some(name.clone()),
        _ => None,
    })
}
