//! Replays of plans: how far is the predicted change of the parallel part's time from a replay of every miss?
//!
//! Recordings are of clock samples at default options, as most machines have them. A trace has only a few rounds of the
//! same program, of which initialisation is a larger part than of the recorded run. So the parallel parts are compared.

use std::fs;
use std::io;

use serde_json::{Value, json};

use super::program::Program;
use super::run::Run;

/// Rounds that are traced.
const PASSES: u64 = 6;
/// Changes of the time below this share have no direction worth predicting.
const EFFECT: f64 = 0.01;

/// Times of the parallel part under a plan, as shares of the time under first touch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replay {
    /// Predicted from samples.
    pub predicted: f64,
    /// Replayed from a trace.
    pub replayed: f64,
}

impl Replay {
    /// Predicts and replays the plan of a recording; none if it changes no time.
    ///
    /// # Errors
    /// `nearpage` failed, or printed no times.
    pub fn of(program: &Program, run: &Run, recording: &str) -> io::Result<Option<Self>> {
        let Program {
            machine,
            layout,
            team,
            passes,
            ..
        } = program;
        let of_machine = ["--machine", machine, "--threads", layout];
        let planned = run.json(&[&["plan", recording, "--json"], &of_machine[..]].concat())?;
        let time = &planned["plans"][0]["time"];
        let parallel_ns =
            |whole: &str, scaled: &str| Some(time[scaled].as_f64()? - time[whole].as_f64()?);
        let before_ns = parallel_ns("first_touch_ns", "scaled_first_touch_ns");
        let after_ns = parallel_ns("planned_ns", "scaled_planned_ns");
        let (Some(before_ns), Some(after_ns)) = (before_ns, after_ns) else {
            return Ok(None);
        };
        if before_ns == after_ns {
            return Ok(None);
        }
        let [team, passes] =
            [*team, program.whole_rounds(PASSES.min(*passes), *team)].map(|one| one.to_string());
        let traced = run.folder().join("traced");
        if traced.exists() {
            fs::remove_dir_all(&traced)?;
        }
        let command = [
            "./program",
            "--size",
            "1",
            "--threads",
            &team,
            "--passes",
            &passes,
        ];
        let trace = [
            &["trace", "-q", "-o", "traced"],
            &of_machine[..],
            &["--"],
            &command,
        ]
        .concat();
        run.output(&trace)?;
        let policies = format!("first-touch,plan:{recording}.toml");
        let simulate = [
            "simulate",
            "traced",
            "--machine",
            machine,
            "--json",
            "--policy",
            &policies,
        ];
        let replayed = run.json(&simulate)?;
        fs::remove_dir_all(&traced)?;
        let replayed_ns = |at: usize| {
            let time = &replayed["results"][at]["parallel_ns"];
            time.as_f64()
                .ok_or_else(|| io::Error::other(format!("no parallel part: {replayed}")))
        };
        Ok(Some(Self {
            predicted: after_ns / before_ns,
            replayed: replayed_ns(1)? / replayed_ns(0)?,
        }))
    }

    /// Results as JSON.
    pub fn to_json(self) -> Value {
        json!({"predicted": self.predicted, "replayed": self.replayed})
    }

    /// The replay in a program's results, if it was replayed.
    pub fn from_json(result: &Value) -> Option<Self> {
        Some(Self {
            predicted: result["predicted"].as_f64()?,
            replayed: result["replayed"].as_f64()?,
        })
    }

    fn error(self) -> f64 {
        (self.predicted / self.replayed - 1.0).abs()
    }

    fn has_effect(&self) -> bool {
        (self.replayed - 1.0).abs() >= EFFECT
    }

    fn is_direction_right(&self) -> bool {
        (self.predicted < 1.0) == (self.replayed < 1.0)
    }
}

/// Figures over several replays; none without one.
pub fn replays_to_json(replays: &[Replay]) -> Option<Value> {
    let mut errors: Vec<f64> = replays.iter().map(|one| one.error()).collect();
    errors.sort_by(f64::total_cmp);
    let tenths = |tenths: usize| errors.get(errors.len() * tenths / 10).copied();
    let of_effect = || replays.iter().filter(|one| one.has_effect());
    let promised = || replays.iter().filter(|one| one.predicted <= 1.0 - EFFECT);
    Some(json!({
        "plans": replays.len(),
        "median_error": tenths(5)?,
        "nine_in_ten_error": tenths(9)?,
        "with_effect": of_effect().count(),
        "direction_right": of_effect().filter(|one| one.is_direction_right()).count(),
        "promised": promised().count(),
        "promised_and_lost": promised().filter(|one| one.replayed >= 1.0 + EFFECT).count(),
        "slower": replays.iter().filter(|one| one.replayed >= 1.0 + EFFECT).count(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_directions_are_of_predictions_against_replays() {
        let replay = |predicted, replayed| Replay {
            predicted,
            replayed,
        };
        assert_eq!(replays_to_json(&[]), None);
        let replays = [replay(0.5, 0.5), replay(0.9, 1.02), replay(0.98, 0.995)];
        let figures = replays_to_json(&replays).unwrap();
        assert_eq!(figures["plans"], 3);
        assert_eq!(
            (&figures["with_effect"], &figures["direction_right"]),
            (&json!(2), &json!(1))
        );
        assert_eq!(
            (&figures["promised"], &figures["promised_and_lost"]),
            (&json!(3), &json!(1))
        );
        let worst = figures["nine_in_ten_error"].as_f64().unwrap();
        assert!((worst - (1.0 - 0.9 / 1.02)).abs() < 1e-9, "{worst}");
        for one in replays {
            assert_eq!(Replay::from_json(&one.to_json()), Some(one));
        }
    }
}
