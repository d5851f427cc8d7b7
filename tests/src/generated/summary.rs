//! Figures over several programs.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde_json::{Value, json};

/// Smallest share of the lines from which an object's pattern must be right.
const SHARE_MIN: f64 = 0.02;

/// Names of the required figures, and their lower bounds.
const REQUIRED_FIGURES: [(&str, f64); 6] = [
    ("score_median", 0.97),
    ("score_percentile_5", 0.85),
    ("other_score_median", 0.95),
    ("other_score_percentile_5", 0.80),
    ("patterns_right", 0.95),
    ("decided_alike", 0.95),
];

/// Figures of objects or programs with a common property.
#[derive(Clone, Debug, Default)]
struct Group {
    count: u64,
    scores: Vec<f64>,
    other_scores: Vec<f64>,
    /// Sum over objects of lines local under the best placement but not under the plan, as a share of the program's
    /// lines.
    lost: f64,
    /// Objects whose pattern must be right.
    named: u64,
    /// Objects with a wrong pattern, by the name of the detected pattern.
    wrong: BTreeMap<String, u64>,
}

/// Figures of objects with similar confidence.
#[derive(Clone, Debug, Default)]
struct Sure {
    objects: u64,
    /// Objects with the right pattern.
    right: u64,
    /// Objects with fewer than 100 samples.
    few: u64,
    /// Lines local under the plan but not under first touch, as a share of the program's lines: sums over objects that
    /// gain and over objects that lose.
    gained: f64,
    lost: f64,
    scores: Vec<f64>,
}

impl Sure {
    fn add(&mut self, object: &Value) {
        self.objects += 1;
        self.right += u64::from(object["is_pattern_right"] == true);
        self.few += u64::from(number(&object["samples"]) < 100.0);
        let local = |at: usize| number(&object["local"][at]);
        let gained = number(&object["share"]) * (local(0) - local(2));
        self.gained += gained.max(0.0);
        self.lost -= gained.min(0.0);
        self.scores.push(number(&object["score"]));
    }
}

/// Figures over results of programs.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    all: Group,
    kinds: BTreeMap<String, Group>,
    styles: BTreeMap<String, Group>,
    /// By detected pattern and decision.
    decisions: BTreeMap<String, Group>,
    /// By confidence in tenths: of the pattern, and of the decision. See [`Sure`].
    sure: [BTreeMap<u64, Sure>; 2],
    accesses: Vec<f64>,
    decided_alike: (u64, u64),
    /// Scores as recorded, at the other size, and at a third size; `of_first` has plans of the first recording.
    of_first: [Vec<f64>; 3],
    of_both: [Vec<f64>; 3],
    /// Programs with a lower local share under the plan than under first touch.
    worse_than_first_touch: u64,
    /// Plans under which threads wait longer than under first touch: as recorded, and at the other size.
    slower_than_first_touch: [u64; 2],
}

/// A plan is worse than first touch if its local share is lower by this much.
const WORSE_LOCAL_SHARE: f64 = 0.02;
/// A plan is slower than first touch if fetching all lines takes longer by this share.
const SLOWER: f64 = 0.01;

fn is_slower(judgement: &Value) -> bool {
    let [planned, touched] = [0, 1].map(|at| number(&judgement["waits_ns"][at]));
    planned > (1.0 + SLOWER) * touched
}

/// Median and fifth percentile of scores.
fn quantiles(scores: &[Vec<f64>; 3]) -> [[f64; 2]; 3] {
    scores
        .each_ref()
        .map(|scores| [0.5, 0.05].map(|part| quantile(scores, part)))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn objects(judgement: &Value) -> &[Value] {
    judgement["objects"].as_array().map_or(&[], Vec::as_slice)
}

/// An object's pattern and decision, without sizes and owners.
fn decision(object: &Value) -> String {
    let word = |name: &str| {
        let text = text(&object[name]);
        let word = text.split([' ', ':', '{', '(']).next();
        match word.unwrap_or_default() {
            "" | "-" => "none",
            word => word,
        }
    };
    format!("{}: {}", word("pattern"), word("decision"))
}

/// The quantile `part` of values; 1 if there are none.
fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 1.0,
        count => {
            let place = (count - 1) as f64 * part;
            let (low, high) = (
                sorted[place.floor() as usize],
                sorted[place.ceil() as usize],
            );
            low + (high - low) * place.fract()
        }
    }
}

impl Group {
    fn add_object(&mut self, object: &Value, other: Option<&Value>) {
        self.count += 1;
        self.scores.push(number(&object["score"]));
        self.other_scores
            .extend(other.map(|other| number(&other["score"])));
        let share = number(&object["share"]);
        self.lost += share * (number(&object["local"][1]) - number(&object["local"][0]));
        if share >= SHARE_MIN {
            self.named += 1;
            if object["is_pattern_right"] != true {
                let pattern = text(&object["pattern"]);
                let name = pattern.split([' ', '{', '(']).next().unwrap_or_default();
                *self.wrong.entry(name.to_owned()).or_default() += 1;
            }
        }
    }

    fn right(&self) -> f64 {
        let wrong: u64 = self.wrong.values().sum();
        match self.named {
            0 => 1.0,
            named => (named - wrong) as f64 / named as f64,
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "count": self.count,
            "score_median": quantile(&self.scores, 0.5),
            "score_percentile_5": quantile(&self.scores, 0.05),
            "other_score_median": quantile(&self.other_scores, 0.5),
            "other_score_percentile_5": quantile(&self.other_scores, 0.05),
            "lost": self.lost,
            "patterns_right": self.right(),
            "patterns_wrong": self.wrong,
        })
    }
}

impl Summary {
    /// Sums up results.
    pub fn of<'a>(results: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut summary = Self::default();
        for result in results {
            let [own, other] = ["own", "other"].map(|name| &result[name]);
            summary.all.count += 1;
            summary.all.scores.push(number(&own["score"]));
            summary.all.other_scores.push(number(&other["score"]));
            summary.accesses.push(number(&result["accesses"]));
            let both = &result["both"];
            if !both.is_null() {
                let first = [own, other, &both["third_of_first"]];
                for (at, first) in first.into_iter().enumerate() {
                    summary.of_first[at].push(number(&first["score"]));
                    summary.of_both[at].push(number(&both["planned"][at]["score"]));
                }
            }
            let local = |at: usize| number(&own["local"][at]);
            summary.worse_than_first_touch += u64::from(local(0) < local(2) - WORSE_LOCAL_SHARE);
            for (count, run) in summary
                .slower_than_first_touch
                .iter_mut()
                .zip(["own", "other"])
            {
                *count += u64::from(is_slower(&result[run]));
            }
            let alike = |at: usize| result["decided_alike"][at].as_u64().unwrap_or(0);
            summary.decided_alike.0 += alike(0);
            summary.decided_alike.1 += alike(1);
            let style = text(&result["style"]).to_owned();
            let style = summary.styles.entry(style).or_default();
            for (number, object) in objects(own).iter().enumerate() {
                let other = objects(other).get(number);
                let kind = text(&object["kind"]).to_owned();
                summary
                    .kinds
                    .entry(kind)
                    .or_default()
                    .add_object(object, other);
                style.add_object(object, other);
                let decision = summary.decisions.entry(decision(object)).or_default();
                decision.add_object(object, other);
                let confidences = ["pattern_confidence", "decision_confidence"];
                for (sure, name) in summary.sure.iter_mut().zip(confidences) {
                    if let Some(confidence) = object[name].as_f64() {
                        let tenth = (confidence * 10.0 + 1e-9) as u64;
                        sure.entry(tenth).or_default().add(object);
                    }
                }
                let mut all = Group::default();
                all.add_object(object, other);
                summary.all.lost += all.lost;
                summary.all.named += all.named;
                for (name, count) in all.wrong {
                    *summary.all.wrong.entry(name).or_default() += count;
                }
            }
            // Counts programs, not their objects.
            style.count += 1;
        }
        summary
    }

    /// The required figures, in the order of `REQUIRED_FIGURES`.
    fn figures(&self) -> [Option<f64>; 6] {
        let (alike, of) = self.decided_alike;
        [
            Some(quantile(&self.all.scores, 0.5)),
            Some(quantile(&self.all.scores, 0.05)),
            Some(quantile(&self.all.other_scores, 0.5)),
            Some(quantile(&self.all.other_scores, 0.05)),
            Some(self.all.right()),
            (of > 0).then(|| alike as f64 / of as f64),
        ]
    }

    /// Median of the programs' scores.
    pub fn score_median(&self) -> f64 {
        quantile(&self.all.scores, 0.5)
    }

    /// Results as JSON: each figure beside its bound, and figures by kind of object and by style of program.
    pub fn to_json(&self) -> Value {
        let figures = REQUIRED_FIGURES.iter().zip(self.figures());
        let figures: serde_json::Map<String, Value> = figures
            .map(|((name, aim), figure)| {
                ((*name).to_owned(), json!({"measured": figure, "aim": aim}))
            })
            .collect();
        let groups = |groups: &BTreeMap<String, Group>| -> serde_json::Map<String, Value> {
            let each = groups.iter();
            each.map(|(name, group)| (name.clone(), group.to_json()))
                .collect()
        };
        json!({
            "programs": self.all.count,
            "accesses_median": quantile(&self.accesses, 0.5),
            "worse_than_first_touch": self.worse_than_first_touch,
            "slower_than_first_touch": self.slower_than_first_touch,
            "figures": figures,
            "kinds": groups(&self.kinds),
            "styles": groups(&self.styles),
            "decisions": groups(&self.decisions),
            "of_first": quantiles(&self.of_first),
            "of_both": quantiles(&self.of_both),
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} programs, {:.0} accesses recorded of each (median); of plans, {} have fewer local lines than first touch, and \
             {} are slower as recorded, {} at the other size\n",
            self.all.count,
            quantile(&self.accesses, 0.5),
            self.worse_than_first_touch,
            self.slower_than_first_touch[0],
            self.slower_than_first_touch[1],
        )?;
        writeln!(f, "{:26} {:>8} {:>6}", "", "measured", "aim")?;
        for ((name, aim), figure) in REQUIRED_FIGURES.iter().zip(self.figures()) {
            let figure = figure.map_or("-".to_owned(), |figure| format!("{figure:.3}"));
            writeln!(f, "{:26} {figure:>8} {aim:>6}", name.replace('_', " "))?;
        }
        if !self.of_both[0].is_empty() {
            writeln!(
                f,
                "\n{:26} {:>8} {:>6} {:>8} {:>6} {:>8} {:>6}",
                "plan of", "recorded", "5 %", "other", "5 %", "third", "5 %"
            )?;
            for (name, scores) in [
                ("the first recording", &self.of_first),
                ("both recordings", &self.of_both),
            ] {
                let [own, other, third] = quantiles(scores);
                writeln!(
                    f,
                    "{name:26} {:8.3} {:6.3} {:8.3} {:6.3} {:8.3} {:6.3}",
                    own[0], own[1], other[0], other[1], third[0], third[1]
                )?;
            }
        }
        for (what, groups) in [
            ("kind", &self.kinds),
            ("style", &self.styles),
            ("decision", &self.decisions),
        ] {
            writeln!(
                f,
                "\n{what:24} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6} {:>8}  wrong patterns",
                "objects", "lost", "median", "5 %", "other", "5 %", "patterns"
            )?;
            let mut sorted: Vec<(&String, &Group)> = groups.iter().collect();
            sorted.sort_by(|a, b| b.1.lost.total_cmp(&a.1.lost));
            for (name, group) in sorted {
                let mut wrong: Vec<(&String, &u64)> = group.wrong.iter().collect();
                wrong.sort_by(|a, b| b.1.cmp(a.1));
                let words = wrong
                    .iter()
                    .fold(String::new(), |mut words, (name, count)| {
                        let _ = write!(
                            words,
                            " {} {count}",
                            if name.is_empty() { "none" } else { name }
                        );
                        words
                    });
                writeln!(
                    f,
                    "{name:24} {:7} {:5.1}% {:6.3} {:6.3} {:6.3} {:6.3} {:7.0}% {words}",
                    group.scores.len(),
                    100.0 * group.lost / self.all.count.max(1) as f64,
                    quantile(&group.scores, 0.5),
                    quantile(&group.scores, 0.05),
                    quantile(&group.other_scores, 0.5),
                    quantile(&group.other_scores, 0.05),
                    100.0 * group.right(),
                )?;
            }
        }
        self.fmt_sure(f)
    }
}

impl Summary {
    /// Rows by confidence: share of right patterns, and gains of decisions.
    fn fmt_sure(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, sure) in ["pattern confidence", "decision confidence"]
            .iter()
            .zip(&self.sure)
        {
            writeln!(
                f,
                "\n{what:20} {:>7} {:>13} {:>6} {:>6} {:>6} {:>6} {:>6}",
                "objects", "< 100 samples", "right", "gained", "lost", "median", "5 %"
            )?;
            for (tenth, sure) in sure {
                let programs = self.all.count.max(1) as f64;
                writeln!(
                    f,
                    "{:<20} {:7} {:13} {:5.0}% {:5.2}% {:5.2}% {:6.3} {:6.3}",
                    format!("from {:.1}", *tenth as f64 / 10.0),
                    sure.objects,
                    sure.few,
                    100.0 * sure.right as f64 / sure.objects.max(1) as f64,
                    100.0 * sure.gained / programs,
                    100.0 * sure.lost / programs,
                    quantile(&sure.scores, 0.5),
                    quantile(&sure.scores, 0.05),
                )?;
            }
        }
        Ok(())
    }
}
