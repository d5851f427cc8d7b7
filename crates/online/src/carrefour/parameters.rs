//! Parameters of `carrefour`, with published defaults.

use crate::ParameterError;
use crate::parameter::parameters;

const LARGE: u64 = 1_000_000_000_000;

parameters! {
    /// Named thresholds, with their sources.
    pub struct CarrefourParameters {
        // Step 1 of §3.2.1.
        maptu = 50, 0..=LARGE, "memory accesses per microsecond above which an application is managed";
        // Step 2.
        reads_percent = 95, 0..=100, "least share of reads among an application's accesses to memory for replication";
        // Step 3.
        imbalance_percent = 35, 0..=10_000, "imbalance of the memory controllers above which pages are interleaved";
        // Step 4.
        local_percent = 80, 0..=100, "share of local accesses below which pages are co-located";
        // Table 2 has this counter, but neither Figure 4 nor the text has a threshold.
        cpu_percent = 0, 0..=100, "CPU utilisation below which an application is left alone";
        // §3.2.2.
        samples = 2, 1..=1_000_000, "samples of a page that a decision needs";
        // §3.3.2, footnote 6.
        candidates = 500, 0..=LARGE, "pages of an application that must be marked for replication for any to be replicated";
        // §3.3.2.
        collapses = 5, 0..=1_000_000, "collapses of a page above which it is not replicated again";
        // §4.4.
        profiled_pages = 30_000, 1..=LARGE, "pages that are profiled between two decisions";
        // §3.3.1.
        actions = 10, 0..=LARGE, "pages placed by a decision, below which sampling is slow";
        fast_cycles = 65_000, 1..=LARGE, "cycles between samples of a thread, at first";
        early_samples = 0, 0..=1, "1: samples are taken before the first decision, too";
        slow_cycles = 260_000, 1..=LARGE, "cycles between samples of a thread, where there is little to do";
        // Table 4: MG, which Carrefour does not manage, loses 2 % at the slow rate.
        sample_cost_cycles = 5_200, 0..=LARGE, "cycles that taking a sample costs";
        // §3.3.
        decision_ns = 1_000_000_000, 1..=LARGE, "time between decisions";
        // Table 4.
        replication = 1, 0..=1, "0: no page is replicated";
        interleaving = 1, 0..=1, "0: no page is interleaved";
        colocation = 1, 0..=1, "0: no page is co-located";
        clustering = 1, 0..=1, "0: threads stay where they are";
    }
}

impl CarrefourParameters {
    /// Checks the parameters together.
    ///
    /// # Errors
    /// Rates are in the wrong order, samples would take all of the time, or all mechanisms are off.
    pub fn check(&self) -> Result<(), ParameterError> {
        let Self {
            fast_cycles,
            slow_cycles,
            sample_cost_cycles,
            ..
        } = self;
        if slow_cycles < fast_cycles {
            return Err(ParameterError(format!(
                "slow_cycles={slow_cycles} is below fast_cycles={fast_cycles}: the slow rate would be the faster one"
            )));
        }
        // Each sample would delay the thread until the next sample, for ever.
        if sample_cost_cycles >= fast_cycles {
            return Err(ParameterError(format!(
                "sample_cost_cycles={sample_cost_cycles} is not below fast_cycles={fast_cycles}: samples would take all of the time"
            )));
        }
        if [self.replication, self.interleaving, self.colocation] == [0; 3] {
            return Err(ParameterError(
                "replication, interleaving and colocation are all 0: carrefour could place nothing; leave one on"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}
