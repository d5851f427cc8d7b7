//! Parameters of the kernel, and costs for the simulation.

use crate::ParameterError;
use crate::parameter::parameters;

const HOUR_MS: u64 = 3_600_000;

parameters! {
    /// Named parameters; the comments have the kernel's names.
    pub struct KernelBalancingParameters {
        // sysctl_numa_balancing_scan_delay.
        scan_delay_ms = 1000, 0..=HOUR_MS, "time before a program is scanned first";
        // sysctl_numa_balancing_scan_period_min and _max.
        scan_period_min_ms = 1000, 1..=HOUR_MS, "least time between scans";
        scan_period_max_ms = 60_000, 1..=HOUR_MS, "most time between scans";
        // sysctl_numa_balancing_scan_size.
        scan_size_mb = 256, 1..=1_000_000, "megabytes unmapped by a scan";
        // CONFIG_HZ=250, as Debian builds it.
        tick_ns = 4_000_000, 1000..=1_000_000_000, "time between the scheduler's ticks";
        // ASSUMPTIONS: on current x86, a minor fault takes half a microsecond to one (lmbench's lat_pagefault), and
        // bookkeeping adds to this. Changing a page table entry in a long run of entries takes some tens of cycles.
        fault_ns = 1000, 0..=1_000_000_000, "cost of a hinting fault, the move not included";
        unmap_ns = 20, 0..=1_000_000_000, "cost of unmapping a page in a scan";
        move_threads = 1, 0..=1, "0: threads stay where they are";
    }
}

impl KernelBalancingParameters {
    /// Checks the parameters together.
    ///
    /// # Errors
    /// Periods are in the wrong order.
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
