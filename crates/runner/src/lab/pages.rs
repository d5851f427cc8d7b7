//! Page events while a command ran in the lab, from the guest's kernel.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of pages in a huge page on x86-64.
const PAGES_PER_HUGE_PAGE: u64 = 512;

/// Page events of the whole guest while the command ran; pages have 4 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LabPages {
    /// Pages that automatic NUMA balancing migrated.
    pub migrated_by_balancing: u64,
    /// Pages that were migrated by calls (`move_pages`, `mbind`), compaction or demotion.
    pub migrated_otherwise: u64,
    /// Pages that could not be migrated.
    pub not_migrated: u64,
    /// Pages that khugepaged copied into huge pages.
    pub copied_by_khugepaged: u64,
    /// Page faults that automatic NUMA balancing caused to observe accesses.
    pub hinting_faults: u64,
    /// Part of `hinting_faults` by CPUs on the page's node.
    pub hinting_faults_local: u64,
    /// Page faults of all kinds.
    pub page_faults: u64,
    /// Huge pages that page faults made.
    pub huge_pages_made: u64,
    /// Huge pages that were split.
    pub huge_pages_split: u64,
    /// Pages that tiering moved to slower memory.
    pub demoted: u64,
    /// Pages that tiering moved to faster memory.
    pub promoted: u64,
}

impl LabPages {
    /// Differences of `/proc/vmstat` before and after the command; `None`: a text is missing or damaged.
    pub(super) fn parse(before: &str, after: &str) -> Option<Self> {
        // Counters that the kernel was built without are missing in both texts and count as 0.
        let value = |text: &str, name: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.map_or(Some(0), |value| value.parse::<u64>().ok())
        };
        let grown = |name: &str| value(after, name)?.checked_sub(value(before, name)?);
        if !(before.contains("pgfault ") && after.contains("pgfault ")) {
            return None;
        }
        let by_balancing = grown("numa_pages_migrated")?;
        Some(Self {
            migrated_by_balancing: by_balancing,
            migrated_otherwise: grown("pgmigrate_success")?.saturating_sub(by_balancing),
            not_migrated: grown("pgmigrate_fail")?,
            copied_by_khugepaged: grown("thp_collapse_alloc")?.checked_mul(PAGES_PER_HUGE_PAGE)?,
            hinting_faults: grown("numa_hint_faults")?,
            hinting_faults_local: grown("numa_hint_faults_local")?,
            page_faults: grown("pgfault")?,
            huge_pages_made: grown("thp_fault_alloc")?,
            huge_pages_split: grown("thp_split_page")?,
            demoted: grown("pgdemote_kswapd")?.checked_add(grown("pgdemote_direct")?)?,
            promoted: grown("pgpromote_success")?,
        })
    }

    /// The events that occurred, as text.
    pub fn to_words(&self) -> Option<String> {
        let parts = [
            (
                self.migrated_by_balancing,
                "migrated by automatic balancing",
            ),
            (self.migrated_otherwise, "by calls or compaction"),
            (self.copied_by_khugepaged, "copied by khugepaged"),
            (self.promoted, "promoted"),
            (self.demoted, "demoted"),
            (self.not_migrated, "not to be migrated"),
        ];
        let parts = parts.iter().filter(|(pages, _)| *pages > 0);
        let parts: Vec<String> = parts
            .map(|(pages, words)| format!("{pages} {words}"))
            .collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_counters_are_reported_by_cause() {
        let before = "numa_pages_migrated 10\npgmigrate_success 12\npgmigrate_fail 0\npgfault 7\nthp_collapse_alloc 1\n";
        let after = "numa_pages_migrated 15\npgmigrate_success 47\npgmigrate_fail 2\npgfault 9\nthp_collapse_alloc 2\n";
        let pages = LabPages::parse(before, after).unwrap();
        assert_eq!(
            (pages.migrated_by_balancing, pages.migrated_otherwise),
            (5, 30)
        );
        assert_eq!((pages.page_faults, pages.copied_by_khugepaged), (2, 512));
        assert_eq!(
            pages.to_words().unwrap(),
            "5 migrated by automatic balancing, 30 by calls or compaction, 512 copied by khugepaged, 2 not to be migrated"
        );
        let unchanged = LabPages::parse(before, before).unwrap();
        assert_eq!(unchanged, LabPages::default());
        assert_eq!(unchanged.to_words(), None);
    }

    #[test]
    fn implausible_page_counters_are_refused() {
        let huge = format!("pgfault 1\nthp_collapse_alloc {}\n", u64::MAX);
        for (before, after) in [
            ("", ""),
            ("pgfault 2\n", "pgfault 1\n"),
            ("pgfault 2\n", "pgfault x\n"),
            ("pgfault 0\n", huge.as_str()),
        ] {
            assert_eq!(LabPages::parse(before, after), None, "{after}");
        }
    }
}
