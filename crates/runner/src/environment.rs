//! Variables that nearpage adds to the environment of a command.

use std::ffi::OsString;
use std::path::PathBuf;

/// Names and values of environment variables.
pub type Environment = Vec<(OsString, OsString)>;

/// Mean number of bytes between two sampled small allocations.
const SMALL_SAMPLE_BYTES: u64 = 512 * 1024;

/// Small allocations that the preload library logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SmallAllocations {
    /// One allocation in 512 KiB on average.
    #[default]
    Sampled,
    /// Every allocation.
    All,
}

/// Variables that make the preload library log allocations to a folder. The path must be absolute.
pub(crate) fn allocation_log(folder: PathBuf, small: SmallAllocations) -> Environment {
    let sample_bytes = match small {
        SmallAllocations::All => 1,
        SmallAllocations::Sampled => SMALL_SAMPLE_BYTES,
    };
    vec![
        (
            nearpage_wire::LOG_DIRECTORY_VARIABLE.into(),
            folder.into_os_string(),
        ),
        (
            nearpage_wire::SMALL_SAMPLE_BYTES_VARIABLE.into(),
            sample_bytes.to_string().into(),
        ),
    ]
}

/// Rank of this process, from the variables of MPI launchers.
pub(crate) fn rank() -> Option<u32> {
    rank_among(|name| std::env::var(name).ok())
}

fn rank_among(variable: impl Fn(&str) -> Option<String>) -> Option<u32> {
    nearpage_wire::RANK_VARIABLES
        .into_iter()
        .find_map(|name| variable(name)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_small_allocation_is_logged_only_when_asked_for() {
        let variables = |small| allocation_log("/r/log/allocations".into(), small);
        let folder = (
            OsString::from(nearpage_wire::LOG_DIRECTORY_VARIABLE),
            OsString::from("/r/log/allocations"),
        );
        let sample = |bytes: &str| {
            (
                OsString::from(nearpage_wire::SMALL_SAMPLE_BYTES_VARIABLE),
                OsString::from(bytes),
            )
        };
        let sampled = [folder.clone(), sample("524288")];
        assert_eq!(variables(SmallAllocations::default()), sampled);
        assert_eq!(variables(SmallAllocations::All), [folder, sample("1")]);
    }

    #[test]
    fn a_rank_is_a_number_of_a_known_launcher() {
        let [first, .., last] = nearpage_wire::RANK_VARIABLES;
        assert_eq!(rank_among(|_| None), None);
        let of_last = |name: &str| (name == last).then(|| "3".to_owned());
        assert_eq!(rank_among(of_last), Some(3));
        let unreadable = |name: &str| match name {
            name if name == first => Some("none".to_owned()),
            name if name == last => Some("5".to_owned()),
            _ => None,
        };
        assert_eq!(rank_among(unreadable), Some(5));
    }
}
