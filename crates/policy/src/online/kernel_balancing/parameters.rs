//! What the kernel lets one set, and what the simulation has to know.

use crate::online::{Parameter, ParameterError, set_field};

/// Named parameters; [`KernelBalancingParameters::PARAMETERS`] has their meaning and source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`PARAMETERS` documents each")]
pub struct KernelBalancingParameters {
    pub scan_delay_ms: u64,
    pub scan_period_min_ms: u64,
    pub scan_period_max_ms: u64,
    pub scan_size_mb: u64,
    pub tick_ns: u64,
    pub fault_ns: u64,
    pub unmap_ns: u64,
    pub move_threads: u64,
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

const COUNT: usize = 8;
const HOUR_MS: u64 = 3_600_000;

impl KernelBalancingParameters {
    /// Names, defaults and ranges, in the order of the fields.
    pub const PARAMETERS: [Parameter; COUNT] = [
        // sysctl_numa_balancing_scan_delay.
        parameter(
            "scan_delay_ms",
            1000,
            0,
            HOUR_MS,
            "time before a program is scanned first",
        ),
        // sysctl_numa_balancing_scan_period_min and _max.
        parameter(
            "scan_period_min_ms",
            1000,
            1,
            HOUR_MS,
            "least time between scans",
        ),
        parameter(
            "scan_period_max_ms",
            60_000,
            1,
            HOUR_MS,
            "most time between scans",
        ),
        // sysctl_numa_balancing_scan_size.
        parameter(
            "scan_size_mb",
            256,
            1,
            1_000_000,
            "megabytes unmapped by a scan",
        ),
        // CONFIG_HZ=250, as Debian builds it.
        parameter(
            "tick_ns",
            4_000_000,
            1000,
            1_000_000_000,
            "time between the scheduler's ticks",
        ),
        // ASSUMPTIONS: a minor fault takes between half a microsecond and one on current x86
        // (lmbench's lat_pagefault), to which the bookkeeping adds; a page table entry changed in
        // a long run of them takes some tens of cycles.
        parameter(
            "fault_ns",
            1000,
            0,
            1_000_000_000,
            "cost of a hinting fault, the move not included",
        ),
        parameter(
            "unmap_ns",
            20,
            0,
            1_000_000_000,
            "cost of unmapping a page in a scan",
        ),
        parameter("move_threads", 1, 0, 1, "0: threads stay where they are"),
    ];

    fn fields(&mut self) -> [&mut u64; COUNT] {
        [
            &mut self.scan_delay_ms,
            &mut self.scan_period_min_ms,
            &mut self.scan_period_max_ms,
            &mut self.scan_size_mb,
            &mut self.tick_ns,
            &mut self.fault_ns,
            &mut self.unmap_ns,
            &mut self.move_threads,
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
    /// Periods in the wrong order.
    pub fn check(&self) -> Result<(), ParameterError> {
        let (least, most) = (self.scan_period_min_ms, self.scan_period_max_ms);
        if most < least {
            return Err(ParameterError(format!(
                "scan_period_max_ms={most} is below scan_period_min_ms={least}: no period would do"
            )));
        }
        Ok(())
    }
}

impl Default for KernelBalancingParameters {
    fn default() -> Self {
        let [
            scan_delay_ms,
            scan_period_min_ms,
            scan_period_max_ms,
            scan_size_mb,
            tick_ns,
            fault_ns,
            unmap_ns,
            move_threads,
        ] = Self::PARAMETERS.map(|parameter| parameter.default);
        Self {
            scan_delay_ms,
            scan_period_min_ms,
            scan_period_max_ms,
            scan_size_mb,
            tick_ns,
            fault_ns,
            unmap_ns,
            move_threads,
        }
    }
}
