//! Thresholds of `traffic`, as published.

use crate::online::{Parameter, ParameterError, set_field};

/// Named thresholds; [`TrafficParameters::PARAMETERS`] has their meaning and source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`PARAMETERS` documents each")]
pub struct TrafficParameters {
    pub maptu: u64,
    pub reads_percent: u64,
    pub imbalance_percent: u64,
    pub local_percent: u64,
    pub cpu_percent: u64,
    pub samples: u64,
    pub candidates: u64,
    pub collapses: u64,
    pub profiled_pages: u64,
    pub actions: u64,
    pub fast_cycles: u64,
    pub slow_cycles: u64,
    pub sample_cost_cycles: u64,
    pub decision_ns: u64,
    pub replication: u64,
    pub interleaving: u64,
    pub colocation: u64,
    pub clustering: u64,
}

const fn parameter(
    name: &'static str,
    default: u64,
    least: u64,
    most: u64,
    meaning: &'static str,
) -> Parameter {
    Parameter {
        name,
        default,
        least,
        most,
        meaning,
    }
}

const fn switch(name: &'static str, meaning: &'static str) -> Parameter {
    parameter(name, 1, 0, 1, meaning)
}

const COUNT: usize = 18;
const LARGE: u64 = 1_000_000_000_000;

impl TrafficParameters {
    /// Names, defaults and ranges, in the order of the fields.
    pub const PARAMETERS: [Parameter; COUNT] = [
        // Step 1 of §3.2.1.
        parameter(
            "maptu",
            50,
            0,
            LARGE,
            "memory accesses per microsecond above which an application is managed",
        ),
        // Step 2.
        parameter(
            "reads_percent",
            95,
            0,
            100,
            "least share of loads among an application's memory accesses for replication",
        ),
        // Step 3.
        parameter(
            "imbalance_percent",
            35,
            0,
            10_000,
            "imbalance of the memory controllers above which pages are interleaved",
        ),
        // Step 4.
        parameter(
            "local_percent",
            80,
            0,
            100,
            "share of local accesses below which pages are co-located",
        ),
        // Table 2 has the counter, Figure 4 and the text no threshold for it.
        parameter(
            "cpu_percent",
            0,
            0,
            100,
            "CPU utilisation below which an application is left alone",
        ),
        // §3.2.2.
        parameter(
            "samples",
            2,
            1,
            1_000_000,
            "samples of a page that a decision needs",
        ),
        // §3.3.2, footnote 6.
        parameter(
            "candidates",
            500,
            0,
            LARGE,
            "pages of an application that must be marked for replication for any to be replicated",
        ),
        // §3.3.2.
        parameter(
            "collapses",
            5,
            0,
            1_000_000,
            "collapses of a page above which it is not replicated again",
        ),
        // §4.4.
        parameter(
            "profiled_pages",
            30_000,
            1,
            LARGE,
            "pages that are profiled between two decisions",
        ),
        // §3.3.1.
        parameter(
            "actions",
            10,
            0,
            LARGE,
            "pages placed by a decision, below which sampling is slow",
        ),
        parameter(
            "fast_cycles",
            65_000,
            1,
            LARGE,
            "cycles between samples of a thread, at first",
        ),
        parameter(
            "slow_cycles",
            260_000,
            1,
            LARGE,
            "cycles between samples of a thread, where there is little to do",
        ),
        // Table 4: MG, where nothing is done, loses 2 % at the slow rate.
        parameter(
            "sample_cost_cycles",
            5_200,
            0,
            LARGE,
            "cycles that taking a sample costs",
        ),
        // §3.3.
        parameter(
            "decision_ns",
            1_000_000_000,
            1,
            LARGE,
            "time between decisions",
        ),
        // Table 4.
        switch("replication", "0: no page is replicated"),
        switch("interleaving", "0: no page is interleaved"),
        switch("colocation", "0: no page is co-located"),
        switch("clustering", "0: threads stay where they are"),
    ];

    fn fields(&mut self) -> [&mut u64; COUNT] {
        [
            &mut self.maptu,
            &mut self.reads_percent,
            &mut self.imbalance_percent,
            &mut self.local_percent,
            &mut self.cpu_percent,
            &mut self.samples,
            &mut self.candidates,
            &mut self.collapses,
            &mut self.profiled_pages,
            &mut self.actions,
            &mut self.fast_cycles,
            &mut self.slow_cycles,
            &mut self.sample_cost_cycles,
            &mut self.decision_ns,
            &mut self.replication,
            &mut self.interleaving,
            &mut self.colocation,
            &mut self.clustering,
        ]
    }

    /// Sets a parameter by name; `false`: there is none of that name.
    ///
    /// # Errors
    /// A value outside its range.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, ParameterError> {
        set_field(self.fields(), &Self::PARAMETERS, name, value)
    }

    /// Names and values.
    pub fn values(&self) -> Vec<(&'static str, u64)> {
        let mut copy = *self;
        let names = Self::PARAMETERS.iter().map(|parameter| parameter.name);
        names
            .zip(copy.fields().into_iter().map(|value| *value))
            .collect()
    }

    /// Checks what single ranges cannot.
    ///
    /// # Errors
    /// Rates in the wrong order; nothing left switched on.
    pub fn check(&self) -> Result<(), ParameterError> {
        let Self {
            fast_cycles,
            slow_cycles,
            ..
        } = self;
        if slow_cycles < fast_cycles {
            return Err(ParameterError(format!(
                "slow_cycles={slow_cycles} is below fast_cycles={fast_cycles}: the slow rate would be the faster one"
            )));
        }
        if [self.replication, self.interleaving, self.colocation] == [0; 3] {
            return Err(ParameterError(
                "replication, interleaving and colocation are all 0: traffic could place nothing; leave one on"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

impl Default for TrafficParameters {
    fn default() -> Self {
        let [
            maptu,
            reads_percent,
            imbalance_percent,
            local_percent,
            cpu_percent,
            samples,
            candidates,
            collapses,
            profiled_pages,
            actions,
            fast_cycles,
            slow_cycles,
            sample_cost_cycles,
            decision_ns,
            replication,
            interleaving,
            colocation,
            clustering,
        ] = Self::PARAMETERS.map(|parameter| parameter.default);
        Self {
            maptu,
            reads_percent,
            imbalance_percent,
            local_percent,
            cpu_percent,
            samples,
            candidates,
            collapses,
            profiled_pages,
            actions,
            fast_cycles,
            slow_cycles,
            sample_cost_cycles,
            decision_ns,
            replication,
            interleaving,
            colocation,
            clustering,
        }
    }
}
