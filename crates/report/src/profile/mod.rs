//! Writes a recording's accesses as a profile for common viewers. Each access is labelled with object, node and level.
//!
//! [`Labels`] names object, node and level of an access; each format has a file that writes the labels. If a recording
//! has more accesses than requested, one of every N accesses is written, drawn at random, and stands for the N. The
//! number of omitted accesses is returned. pprof and OTLP sum accesses, so they get all of them.

mod csv;
mod firefox;
mod labels;
mod otlp;
mod perf_script;
mod perfetto;
mod pprof;
mod sums;
mod table;

use std::io::{self, Write};

use nearpage_recording::{AccessBatch, Recording};

pub use self::otlp::{RunningAccess, RunningProgram, rejected_profiles, running_profiles};
pub use self::table::write_labelled_table;

use self::labels::{CodeTable, Labelled, Labels};

/// Format of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileFormat {
    /// Text as `perf script` prints it, for stackcollapse-perf.pl, speedscope and `nearpage import`. The call chain of
    /// a sample has the functions, then the object.
    PerfScript,
    /// A table with a header (RFC 4180).
    Csv,
    /// Firefox Profiler's processed format, JSON.
    Firefox,
    /// Go's pprof: a gzipped protocol buffer.
    Pprof,
    /// OpenTelemetry's profiles: a protocol buffer, which collectors accept by HTTP.
    Otlp,
    /// Chrome's trace event format, JSON, which Perfetto reads.
    Perfetto,
}

/// Numbers of written and omitted accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileCounts {
    /// Accesses that were written, or summed.
    pub accesses: u64,
    /// Omitted accesses, which the written accesses stand for.
    pub dropped: u64,
}

/// Why a profile could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The recording could not be read.
    #[error(transparent)]
    Recording(#[from] nearpage_recording::Error),
    /// The profile could not be written.
    #[error("can't be written: {0}")]
    Write(#[from] io::Error),
}

/// Takes labelled accesses, and writes them at once or at the end.
trait Writer {
    fn access(&mut self, access: &Labelled<'_>, out: &mut dyn Write) -> io::Result<()>;

    /// `sampled`: a note if each access stands for several.
    fn finish(self: Box<Self>, sampled: Option<&str>, out: &mut dyn Write) -> io::Result<()>;
}

/// Writes at most `accesses_max` accesses of `recording` to `out`. pprof and OTLP get the sums of all accesses.
///
/// # Errors
/// The recording is damaged, or writing to `out` fails.
pub fn write_profile(
    recording: &Recording,
    format: ProfileFormat,
    accesses_max: u64,
    out: &mut dyn Write,
) -> Result<ProfileCounts, ProfileError> {
    let total = recording.access_count();
    let every = match format {
        ProfileFormat::Pprof | ProfileFormat::Otlp => 1,
        _ => total.div_ceil(accesses_max.max(1)).max(1),
    };
    let sampled = (every > 1).then(|| {
        format!(
            "sampled: one access at random of every {every} is here and stands for them, of {total}"
        )
    });
    let mut writer: Box<dyn Writer + '_> = match format {
        ProfileFormat::PerfScript => Box::new(perf_script::PerfScript::begin(
            recording,
            sampled.as_deref(),
            out,
        )?),
        ProfileFormat::Csv => Box::new(csv::Csv::begin(out)?),
        ProfileFormat::Firefox => Box::new(firefox::Firefox::new(recording)),
        ProfileFormat::Pprof => Box::new(pprof::Pprof::new(recording)),
        ProfileFormat::Otlp => Box::new(otlp::Otlp::new(recording)),
        ProfileFormat::Perfetto => Box::new(perfetto::Perfetto::begin(recording, out)?),
    };
    let written = for_each_labelled(recording, every, |labelled| {
        Ok(writer.access(labelled, out)?)
    })?;
    writer.finish(sampled.as_deref(), out)?;
    out.flush()?;
    Ok(written)
}

/// Calls `take` with one of every `every` accesses, which stands for the `every` accesses.
fn for_each_labelled(
    recording: &Recording,
    every: u64,
    mut take: impl FnMut(&Labelled<'_>) -> Result<(), ProfileError>,
) -> Result<ProfileCounts, ProfileError> {
    let labels = Labels::new(recording);
    let mut search = labels.index.search();
    let mut codes = CodeTable::new(recording);
    let mut written = ProfileCounts::default();
    let mut number = 0;
    let mut batch = AccessBatch::default();
    let mut reader = recording.chunk_reader();
    for chunk in 0..recording.access_chunks() {
        reader.read(chunk, nearpage_recording::ColumnSelection::ALL, &mut batch)?;
        for row in 0..batch.len() {
            if chosen(number, every) {
                let mut access = batch.get(row);
                access.weight *= every as f32;
                access.cost_ns *= every as f32;
                labels.with(&mut codes, &mut search, access, &mut take)?;
                written.accesses += 1;
            } else {
                written.dropped += 1;
            }
            number += 1;
        }
    }
    Ok(written)
}

/// Is this access chosen among its group of `every` neighbours? The choice is random (Fibonacci hashing of the group's
/// number), so that it stays out of step with loops.
fn chosen(number: u64, every: u64) -> bool {
    let hash = (number / every)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number % every == (hash >> 32) % every
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_every_so_many_is_chosen_and_not_always_the_same() {
        for every in [1, 2, 3, 7, 100] {
            let mut places = std::collections::BTreeSet::new();
            for begin in (0..100 * every).step_by(every as usize) {
                let kept: Vec<u64> = (begin..begin + every)
                    .filter(|number| chosen(*number, every))
                    .collect();
                assert_eq!(kept.len(), 1);
                places.insert(kept[0] - begin);
            }
            assert!(
                places.len() as u64 > every.min(20) / 2,
                "{every}: {places:?}"
            );
        }
    }
}
