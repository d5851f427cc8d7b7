//! A job: a folder of the recordings of its ranks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use nearpage_amount::counted;

use crate::error::IoContext;
use crate::folder::{self, METADATA_FILE};
use crate::{Error, Metadata, Status};

/// Most entries of a folder that are read: more than any machine has ranks, but a bound for other folders.
const ENTRIES_MAX: usize = 1 << 20;

/// The recording of a rank.
#[derive(Clone, Debug)]
pub struct RankRecording {
    /// Folder of the recording.
    pub folder: PathBuf,
    /// Number of the rank.
    pub rank: u32,
    /// Host that the rank ran on; empty if the recording does not say.
    pub host: String,
    /// Metadata of the recording.
    pub metadata: Metadata,
}

/// The recordings of a job's ranks.
#[derive(Clone, Debug)]
pub struct Job {
    /// Folder with the recordings.
    pub folder: PathBuf,
    /// Name of the job and its step, if the recordings state it.
    pub name: Option<String>,
    /// Number of ranks that the launcher started, if the recordings state it.
    pub size: Option<u32>,
    /// Recorded ranks in ascending order, with one recording each.
    pub ranks: Vec<RankRecording>,
    /// Notes for the user: ranks are missing, or were recorded differently.
    pub notes: Vec<String>,
}

impl Job {
    /// The job in `folder`; `None` if the folder is a recording itself, or contains no recording of a rank.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(folder: &Path) -> Result<Option<Self>, Error> {
        if folder.join(METADATA_FILE).exists() || !folder.is_dir() {
            return Ok(None);
        }
        let mut found = Vec::new();
        let mut notes = Vec::new();
        let entries = fs::read_dir(folder).at(folder, "read the folder")?;
        for entry in entries.take(ENTRIES_MAX) {
            let path = entry.at(folder, "read the folder")?.path();
            if !path.join(METADATA_FILE).exists() {
                continue;
            }
            match folder::read_metadata(&path) {
                Err(error) => notes.push(format!("left out: {error}")),
                Ok(metadata) => match rank_of(&metadata) {
                    None => notes.push(format!(
                        "{}: left out, as no launcher gave it a rank",
                        path.display()
                    )),
                    Some(rank) => found.push(RankRecording {
                        folder: path,
                        rank,
                        host: host_of(&metadata).to_owned(),
                        metadata,
                    }),
                },
            }
        }
        if found.is_empty() {
            return Ok(None);
        }
        notes.sort();
        Ok(Some(Self::of(folder, found, notes)))
    }

    fn of(folder: &Path, mut found: Vec<RankRecording>, mut notes: Vec<String>) -> Self {
        let name = keep_latest_job(&mut found, &mut notes);
        keep_first_of_each(&mut found, &mut notes);
        let launched = found
            .iter()
            .filter_map(|rank| rank.metadata.launched.as_ref());
        let size = launched.filter_map(|launched| launched.size).max();
        let missing = missing(&found, size);
        if !missing.is_empty() {
            notes.push(format!(
                "{} of {} missing (not recorded, or not written)",
                rank_words(&missing),
                counted(size.unwrap_or_default().into(), "rank")
            ));
        }
        let ranks_where = |wanted: &dyn Fn(&Metadata) -> bool| {
            let ranks = found.iter().filter(|rank| wanted(&rank.metadata));
            ranks.map(|rank| rank.rank).collect::<Vec<u32>>()
        };
        let versions: BTreeSet<&str> = found.iter().map(|rank| &*rank.metadata.recorder).collect();
        if versions.len() > 1 {
            let of_version = |version: &&str| {
                let ranks = ranks_where(&|metadata| metadata.recorder == *version);
                format!("{version} ({})", rank_words(&ranks))
            };
            let listed: Vec<String> = versions.iter().map(of_version).collect();
            notes.push(format!(
                "recorded by different versions of nearpage: {}",
                listed.join(", ")
            ));
        }
        let incomplete = ranks_where(&|metadata| metadata.status == Status::Incomplete);
        if !incomplete.is_empty() {
            notes.push(format!(
                "{}: incomplete (the recorder was killed, ran out of disk, or is still running); this is what there is",
                rank_words(&incomplete)
            ));
        }
        Self {
            folder: folder.to_owned(),
            name,
            size,
            ranks: found,
            notes,
        }
    }
}

impl Job {
    /// Notes of the ranks' recorders, each with the ranks that have it; the most frequent note comes first.
    pub fn rank_notes(&self) -> Vec<(&str, Vec<u32>)> {
        let mut ranks: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for rank in &self.ranks {
            let said: BTreeSet<&str> = rank.metadata.notes.iter().map(String::as_str).collect();
            for note in said {
                ranks.entry(note).or_default().push(rank.rank);
            }
        }
        let mut notes: Vec<(&str, Vec<u32>)> = ranks.into_iter().collect();
        notes.sort_by_key(|(_, ranks)| Reverse(ranks.len()));
        notes
    }
}

fn rank_of(metadata: &Metadata) -> Option<u32> {
    let launched = metadata.launched.as_ref().map(|launched| launched.rank);
    launched.or(metadata.rank)
}

fn host_of(metadata: &Metadata) -> &str {
    let launched = metadata.launched.as_ref();
    launched.map_or("", |launched| &launched.host)
}

/// Keeps the job that started last, if the folder has several. Returns the name of the job.
fn keep_latest_job(found: &mut Vec<RankRecording>, notes: &mut Vec<String>) -> Option<String> {
    let name = |rank: &RankRecording| {
        let launched = rank.metadata.launched.as_ref();
        launched.and_then(crate::Launched::job_name)
    };
    let mut started: BTreeMap<Option<String>, u64> = BTreeMap::new();
    for rank in found.iter() {
        let latest = started.entry(name(rank)).or_default();
        *latest = (*latest).max(rank.metadata.started_unix_ns);
    }
    let latest = started
        .iter()
        .max_by_key(|(_, started)| **started)
        .and_then(|(job, _)| job.clone());
    if started.len() > 1 {
        let shown = |job: &Option<String>| {
            job.clone()
                .unwrap_or_else(|| "one without a name".to_owned())
        };
        let names: Vec<String> = started.keys().take(4).map(shown).collect();
        notes.push(format!(
            "{} in this folder ({}{}): this is {}, which started last; record each into a folder of its own (-o with %j)",
            counted(started.len() as u64, "job"),
            names.join(", "),
            if started.len() > names.len() { ", …" } else { "" },
            shown(&latest)
        ));
    }
    found.retain(|rank| name(rank) == latest);
    latest
}

/// Keeps, for each rank, the recording that started first.
fn keep_first_of_each(found: &mut Vec<RankRecording>, notes: &mut Vec<String>) {
    found.sort_by_key(|rank| (rank.rank, rank.metadata.started_unix_ns));
    let mut repeated = BTreeSet::new();
    found.dedup_by(|later, first| {
        let is_repeated = later.rank == first.rank;
        if is_repeated {
            repeated.insert(first.rank);
        }
        is_repeated
    });
    if !repeated.is_empty() {
        let ranks: Vec<u32> = repeated.into_iter().collect();
        notes.push(format!(
            "{}: recorded more than once; the recording that started first counts",
            rank_words(&ranks)
        ));
    }
}

/// Ranks below `size` without a recording, up to a limit.
fn missing(found: &[RankRecording], size: Option<u32>) -> Vec<u32> {
    const LISTED_MAX: usize = 1 << 16;
    let there: BTreeSet<u32> = found.iter().map(|rank| rank.rank).collect();
    let all = 0..size.unwrap_or_default();
    all.filter(|rank| !there.contains(rank))
        .take(LISTED_MAX)
        .collect()
}

/// Ranks in words: `rank 3`, `ranks 3 and 41`, `ranks 0-2, 5 and 7-9`. If there are many runs, the longest are named.
pub fn rank_words(ranks: &[u32]) -> String {
    const RUNS_MAX: usize = 12;
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    ranks.dedup();
    let mut runs: Vec<&[u32]> = ranks
        .chunk_by(|a, b| a.checked_add(1) == Some(*b))
        .collect();
    let all = runs.len();
    if all > RUNS_MAX {
        runs.sort_by_key(|run| Reverse(run.len()));
        runs.truncate(RUNS_MAX);
        runs.sort_unstable();
    }
    // Two consecutive ranks read better as two numbers than as a range.
    let words: Vec<String> = runs
        .iter()
        .flat_map(|run| match run {
            [] => Vec::new(),
            [first, .., last] if run.len() > 2 => vec![format!("{first}-{last}")],
            few => few.iter().map(u32::to_string).collect(),
        })
        .collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    match words.split_last() {
        None => "no rank".to_owned(),
        _ if all > RUNS_MAX => format!(
            "{noun} {} and others, {} in all",
            words.join(", "),
            ranks.len()
        ),
        Some((only, [])) => format!("{noun} {only}"),
        Some((last, others)) => format!("{noun} {} and {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::{Launched, Launcher, Source};

    fn metadata(rank: u32, job: &str, started_unix_ns: u64) -> Metadata {
        Metadata {
            status: Status::Complete,
            started_unix_ns,
            launched: Some(Launched {
                launcher: Launcher::Slurm,
                rank,
                size: Some(4),
                local_rank: None,
                node_index: None,
                host: "n1".to_owned(),
                job: Some(job.to_owned()),
                step: None,
            }),
            ..Metadata::begun(Source::Clock, UNIX_EPOCH, Vec::new())
        }
    }

    fn write(folder: &Path, name: &str, metadata: &Metadata) {
        let folder = folder.join(name);
        fs::create_dir(&folder).unwrap();
        folder::write_metadata(&folder, metadata, &Default::default()).unwrap();
    }

    fn open(folder: &Path) -> Job {
        Job::open(folder).unwrap().unwrap()
    }

    fn ranks(job: &Job) -> Vec<u32> {
        job.ranks.iter().map(|rank| rank.rank).collect()
    }

    #[test]
    fn a_job_is_a_folder_of_ranks() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Job::open(folder.path()).unwrap().is_none());
        assert!(Job::open(&folder.path().join("none")).unwrap().is_none());
        for rank in (0..4).rev() {
            write(folder.path(), &format!("r{rank}"), &metadata(rank, "7", 1));
        }
        fs::write(folder.path().join("slurm-7.out"), "").unwrap();
        let job = open(folder.path());
        assert_eq!(ranks(&job), [0, 1, 2, 3]);
        assert_eq!((job.name.as_deref(), job.size), (Some("7"), Some(4)));
        assert_eq!(job.notes, [""; 0]);
        // A folder that is a recording itself is no job.
        assert!(Job::open(&folder.path().join("r0")).unwrap().is_none());
    }

    #[test]
    fn faults_of_a_job_take_one_line_each() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, "a", &metadata(0, "7", 1));
        let mut other = metadata(2, "7", 1);
        other.recorder = "9.9".to_owned();
        other.status = Status::Incomplete;
        write(folder, "b", &other);
        write(folder, "b.2", &metadata(2, "7", 5));
        write(folder, "c", &metadata(1, "6", 0));
        let alone = Metadata {
            launched: None,
            ..metadata(0, "7", 1)
        };
        write(folder, "d", &alone);
        write(folder, "e", &metadata(0, "7", 1));
        fs::write(folder.join("e").join(METADATA_FILE), "{\"version\": 99}").unwrap();
        let job = open(folder);
        assert_eq!(ranks(&job), [0, 2]);
        let expected = [
            "no launcher gave it a rank",
            "format version 99",
            "2 jobs in this folder (6, 7): this is 7",
            "rank 2: recorded more than once",
            "ranks 1 and 3 of 4 ranks missing",
            "different versions of nearpage",
            "rank 2: incomplete",
        ];
        assert_eq!(job.notes.len(), expected.len(), "{:#?}", job.notes);
        for (note, words) in job.notes.iter().zip(expected) {
            assert!(
                note.contains(words) && !note.contains('\n'),
                "{note} / {words}"
            );
        }
    }

    #[test]
    fn notes_of_ranks_are_merged() {
        let folder = tempfile::tempdir().unwrap();
        let notes = [&["same", "same"][..], &["same", "own"], &[], &["same"]];
        for (rank, notes) in (0..).zip(notes) {
            let mut said = metadata(rank, "7", 1);
            said.notes = notes.iter().map(|&note| note.to_owned()).collect();
            write(folder.path(), &format!("r{rank}"), &said);
        }
        let job = open(folder.path());
        assert_eq!(
            job.rank_notes(),
            [("same", vec![0, 1, 3]), ("own", vec![1])]
        );
    }

    #[test]
    fn false_job_sizes_list_a_bounded_number_of_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let mut lie = metadata(u32::MAX, "7", 1);
        lie.launched.as_mut().unwrap().size = Some(u32::MAX);
        write(folder.path(), "a", &lie);
        let job = open(folder.path());
        assert!(job.notes[0].contains("0-65535"), "{}", job.notes[0]);
    }

    #[test]
    fn ranks_in_words() {
        let cases: [(&[u32], &str); 6] = [
            (&[], "no rank"),
            (&[3], "rank 3"),
            (&[41, 3], "ranks 3 and 41"),
            (&[0, 1, 2, 5], "ranks 0-2 and 5"),
            (&[0, 1, 5, 7, 8, 9], "ranks 0, 1, 5 and 7-9"),
            (&[u32::MAX, u32::MAX - 1], "ranks 4294967294 and 4294967295"),
        ];
        for (ranks, words) in cases {
            assert_eq!(rank_words(ranks), words);
        }
        let odd: Vec<u32> = (0..100).map(|rank| 2 * rank).collect();
        assert!(rank_words(&odd).ends_with("and others, 100 in all"));
    }
}
