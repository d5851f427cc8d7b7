//! Results of a script that ran in a guest, and its use of `nearpage live` there.

use std::time::Duration;

use crate::{Case, Guest, GuestOutput, Inspection};

/// Options of `live` that give thousands of samples per interval.
pub const LIVE: &str = "live -q --policy migrate --rate 3000 --interval 1s";
/// Lets pages move as fast as the emulator can. By default some twenty intervals pass, because it moves them slowly.
pub const FAST: &str = "--max-stall 200ms";
/// Shell functions that wait for conditions about programs and logs.
pub const WAITING: &str = include_str!("../guest/waiting.sh");

/// Makes exact tests of first touches possible: without huge pages, which the first thread to touch any part would own,
/// and without automatic NUMA balancing, which moves pages.
pub const EXACT: &str = "set -e\n\
    echo 0 >/proc/sys/kernel/numa_balancing\n\
    echo never >/sys/kernel/mm/transparent_hugepage/enabled\n";

/// Results of a script in a guest.
pub struct InGuest {
    /// The machine.
    pub guest: Guest,
    /// The folder that the script wrote to.
    pub case: Case,
    output: GuestOutput,
}

impl InGuest {
    /// Runs a script, which must succeed.
    pub fn run(guest: Guest, case: Case, script: &str) -> Self {
        let output = guest
            .run_in(&case, script, Duration::from_secs(2400))
            .unwrap();
        assert_eq!(output.status, 0, "{output}");
        Self {
            guest,
            case,
            output,
        }
    }

    /// Reads an inspection that the script saved under a name.
    pub fn inspection(&self, name: &str) -> Inspection {
        Inspection::read(&self.case.path(name))
            .unwrap_or_else(|error| panic!("{name}: {error}\n{}", self.output))
    }

    /// Intervals of a log of `live`, without the log's head. The last line of a killed daemon's log may be cut short.
    pub fn live_log(&self, name: &str) -> Vec<serde_json::Value> {
        let text = self.case.read(name);
        let entries = text.lines().skip(1);
        entries
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Asserts that a share of the pages of each of triad's arrays is where the threads are that use them.
    pub fn assert_triad_in_blocks(&self, inspection: &str, least: f64) {
        let placed = self.inspection(inspection);
        for object in ["a", "b", "c"] {
            let share = placed.in_blocks(object, &self.guest);
            let nodes = placed.pages[object].count();
            assert!(share >= least, "{object}: {share}: {nodes:?}");
        }
    }

    /// Output of a program before `words`: its name and checksum.
    pub fn before(&self, name: &str, words: &str) -> String {
        let text = self.case.read(name);
        let (checksum, _) = text
            .split_once(words)
            .unwrap_or_else(|| panic!("{name}: {text}"));
        checksum.to_owned()
    }
}

/// Number of pages that moved according to a log.
pub fn moved(log: &[serde_json::Value]) -> u64 {
    pages_of(log, "moved")
}

/// Number of pages with an outcome, such as `pinned`, according to a log.
pub fn pages_of(log: &[serde_json::Value], outcome: &str) -> u64 {
    let processes = log
        .iter()
        .flat_map(|entry| entry["processes"].as_array().unwrap());
    processes
        .map(|process| process["outcomes"][outcome].as_u64().unwrap())
        .sum()
}
