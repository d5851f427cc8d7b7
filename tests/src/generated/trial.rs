//! Records, plans and judges a program: as recorded, at another size and team, with a plan of both, and repeated.

use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::judge::{JudgedObject, Judgement, Setting, judge};
use super::program::Program;
use super::replay::Replay;
use super::run::{RecordingOptions, Run};

/// Smallest share of the cost from which repeated decisions about an object are compared.
const COST_MIN: f64 = 0.01;

/// Results of a plan of two recordings, for comparison with the plan of the first one.
#[derive(Clone, Debug)]
pub struct TwoRecordingsResult {
    /// At the first recording's size and team, at the other size and team, and at a third size.
    pub planned: [Judgement; 3],
    /// Result at the third size of the plan of the first recording alone.
    pub third_of_first: Judgement,
}

/// Size factor of a run that no plan is made from; its team is that of the first recording.
const THIRD_SIZE: u64 = 3;

/// Results of a program.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The judged program.
    pub program: Program,
    /// The plan at the recorded size and team.
    pub own: Judgement,
    /// The plan at another size, with another team.
    pub other: Judgement,
    /// The plan of both recordings, if requested.
    pub both: Option<TwoRecordingsResult>,
    /// Plans of repeated recordings, at the recorded size and team.
    pub again: Vec<Judgement>,
}

impl Trial {
    /// Records a program `repeat` times into a folder, plans and judges.
    ///
    /// # Errors
    /// A step failed.
    pub fn new(
        program: Program,
        nearpage: &Path,
        folder: &Path,
        recordings: u64,
        options: RecordingOptions,
    ) -> io::Result<Self> {
        let run = Run::new(&program, nearpage, folder)?.recorded(options);
        let Program { team, passes, .. } = program;
        let setting = Setting {
            recording: "recorded",
            size: 1,
            team,
            passes,
        };
        run.record("recorded", 1, team, passes)?;
        let plan = run.plan(&["recorded"])?;
        let own = judge(&program, &run, &plan, setting)?;

        // By default, only the objects' addresses are needed from the other run.
        let (size, other_team) = program.other;
        let other_passes = match options.is_of_both {
            // The same total number of lines as in the first run.
            true => program.whole_rounds((passes / size).max(1), other_team),
            false => 1,
        };
        run.record("other", size, other_team, other_passes)?;
        let other_setting = Setting {
            recording: "other",
            size,
            team: other_team,
            passes: program.whole_rounds(1, other_team),
        };
        let other = judge(&program, &run, &plan, other_setting)?;
        let both = match options.is_of_both {
            true => {
                let of_both = run.plan(&["recorded", "other"])?;
                run.record("third", THIRD_SIZE, team, 1)?;
                let third = Setting {
                    recording: "third",
                    size: THIRD_SIZE,
                    team,
                    passes: program.whole_rounds(1, team),
                };
                Some(TwoRecordingsResult {
                    planned: [
                        judge(&program, &run, &of_both, setting)?,
                        judge(&program, &run, &of_both, other_setting)?,
                        judge(&program, &run, &of_both, third)?,
                    ],
                    third_of_first: judge(&program, &run, &plan, third)?,
                })
            }
            false => None,
        };

        let mut again = Vec::new();
        for number in 2..=recordings {
            let name = format!("recorded.{number}");
            run.record(&name, 1, team, passes)?;
            let plan = run.plan(&[&name])?;
            let setting = Setting {
                recording: &name,
                ..setting
            };
            again.push(judge(&program, &run, &plan, setting)?);
        }
        Ok(Self {
            program,
            own,
            other,
            both,
            again,
        })
    }

    /// Replays the plan of the recording in the trial's folder.
    ///
    /// # Errors
    /// A step failed.
    pub fn replay(&self, nearpage: &Path, folder: &Path) -> io::Result<Option<Replay>> {
        let run = Run::new(&self.program, nearpage, folder)?;
        Replay::of(&self.program, &run, "recorded")
    }

    /// Number of objects decided alike in all recordings, and number of objects compared; 0 for a single recording.
    pub fn decided_alike(&self) -> (u64, u64) {
        if self.again.is_empty() {
            return (0, 0);
        }
        let counted = self.own.objects.iter().enumerate();
        let counted = counted.filter(|(_, object)| object.cost_share >= COST_MIN);
        let alike =
            |(number, _): &(usize, &JudgedObject)| self.decided_otherwise(*number).is_empty();
        (
            counted.clone().filter(alike).count() as u64,
            counted.count() as u64,
        )
    }

    /// Results for object `number` in repeated recordings whose decision differs.
    pub fn decided_otherwise(&self, number: usize) -> Vec<&JudgedObject> {
        let own = &self.own.objects[number];
        let others = self.again.iter().map(|one| &one.objects[number]);
        others.filter(|other| !own.is_decided_as(other)).collect()
    }

    /// A line for results.jsonl.
    pub fn to_json(&self) -> Value {
        let Program {
            seed,
            style,
            team,
            machine,
            layout,
            ..
        } = self.program;
        json!({
            "seed": seed,
            "style": format!("{style:?}"),
            "team": team,
            "machine": machine,
            "layout": layout,
            "accesses": self.own.accesses,
            "predicted": self.own.predicted,
            "own": judgement(&self.own),
            "other": judgement(&self.other),
            "both": self.both.as_ref().map(|both| json!({
                "planned": both.planned.iter().map(judgement).collect::<Vec<_>>(),
                "third_of_first": judgement(&both.third_of_first),
            })),
            "decided_alike": self.decided_alike(),
        })
    }
}

fn judgement(judgement: &Judgement) -> Value {
    let object = |object: &JudgedObject| {
        json!({
            "name": object.name,
            "kind": object.kind,
            "share": object.share,
            "cost_share": object.cost_share,
            "samples": object.samples,
            "pattern_confidence": object.pattern_confidence,
            "decision_confidence": object.decision_confidence,
            "expected": object.expected,
            "pattern": object.pattern,
            "is_pattern_right": object.is_pattern_right,
            "decision": object.decision,
            "local": object.local,
            "score": object.score(),
        })
    };
    json!({
        "score": judgement.score(),
        "local": judgement.local,
        "waits_ns": judgement.waits_ns,
        "objects": judgement.objects.iter().map(object).collect::<Vec<_>>(),
    })
}
