//! File descriptors: as many as the system allows, and never so many connections that none is left for Redis.

use std::io;

/// What a process needs beside connections: standard streams, runtimes, listeners, files of secrets, and some to spare.
const OTHERS: usize = 64;

/// Raises the limit of open files as far as the system lets us, if that is needed, and returns how many connections fit
/// under it: `connections`, or fewer. `reserved` descriptors are left for connections to the store and for probes.
///
/// # Errors
/// The system does not say what the limit is.
pub fn connections_that_fit(connections: usize, reserved: usize) -> io::Result<usize> {
    let needed = connections + reserved + OTHERS;
    let allowed = rlimit::increase_nofile_limit(needed as u64)?;
    let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
    Ok(fitting(connections, reserved, allowed))
}

fn fitting(connections: usize, reserved: usize, allowed: usize) -> usize {
    let left = allowed.saturating_sub(reserved + OTHERS);
    // With so few that none is left, a process that hardly serves tells more than one that does not start.
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
