//! One program recorded, planned and judged: as recorded, at another size with another team, by both, and again.

use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::judge::{JudgedObject, Judgement, Setting, judge};
use super::program::Program;
use super::run::{How, Run};

/// Objects of a smaller share of the cost need not be decided alike.
const COST_MIN: f64 = 0.01;

/// What a plan of two recordings comes to beside the plan of the first one.
#[derive(Clone, Debug)]
pub struct OfBoth {
    /// As it was recorded, at the other size with the other team, and at a third size.
    pub planned: [Judgement; 3],
    /// The plan of the first recording alone, at the third size.
    pub third_of_first: Judgement,
}

/// The third size, of which there is no recording that a plan is made of; the team is as first recorded.
const THIRD_SIZE: u64 = 3;

/// A program under the plan of its recording.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The program.
    pub program: Program,
    /// As it was recorded.
    pub own: Judgement,
    /// At another size, with another team.
    pub other: Judgement,
    /// The plan of both recordings; none where it was not asked for.
    pub both: Option<OfBoth>,
    /// As it was recorded, under the plans of further recordings.
    pub again: Vec<Judgement>,
}

impl Trial {
    /// Records a program so many times into a folder as `how` says, plans and judges.
    ///
    /// # Errors
    /// A step failed.
    pub fn new(
        program: Program,
        nearpage: &Path,
        folder: &Path,
        recordings: u64,
        how: How,
    ) -> io::Result<Self> {
        let run = Run::new(&program, nearpage, folder)?.recorded(how);
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

        // Only where objects are has to be known of the other run.
        let (size, other_team) = program.other;
        let other_passes = match how.is_of_both {
            // As many lines in all.
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
        let both = match how.is_of_both {
            true => {
                let of_both = run.plan(&["recorded", "other"])?;
                run.record("third", THIRD_SIZE, team, 1)?;
                let third = Setting {
                    recording: "third",
                    size: THIRD_SIZE,
                    team,
                    passes: program.whole_rounds(1, team),
                };
                Some(OfBoth {
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

    /// Objects of which as much is decided in all recordings, and all that count; 0 of a single recording.
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

    /// The object of that number in the further recordings in which something else is decided about it.
    pub fn decided_otherwise(&self, number: usize) -> Vec<&JudgedObject> {
        let own = &self.own.objects[number];
        let others = self.again.iter().map(|one| &one.objects[number]);
        others.filter(|other| !own.is_decided_as(other)).collect()
    }

    /// As a line of a file of results.
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
