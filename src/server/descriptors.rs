//! File descriptors: raises their limit if needed, and lowers the number of connections so that some are left for
//! Redis.

use std::io;

/// The descriptors for anything but connections: standard streams, runtimes, listeners, secret files, and a margin.
const OTHERS: usize = 64;

/// Raises the limit of open files if needed and possible, and returns how many connections fit under it: `connections`,
/// or fewer. `reserved` descriptors are left for connections to the store and for probes.
///
/// # Errors
/// The limit cannot be read or raised.
pub fn connections_that_fit(connections: usize, reserved: usize) -> io::Result<usize> {
    let needed = connections + reserved + OTHERS;
    let allowed = rlimit::increase_nofile_limit(needed as u64)?;
    let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
    Ok(fitting(connections, reserved, allowed))
}

fn fitting(connections: usize, reserved: usize, allowed: usize) -> usize {
    let left = allowed.saturating_sub(reserved + OTHERS);
    // At least one: a process that serves a single connection is easier to diagnose than one that does not start.
    connections.min(left).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_the_store() {
        assert_eq!(fitting(10_000, 36, 20_000), 10_000);
        assert_eq!(fitting(10_000, 36, 1_024), 924);
        assert_eq!(fitting(10_000, 36, 50), 1);
    }
}
