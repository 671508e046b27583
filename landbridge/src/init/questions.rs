//! Questions at a terminal, for what the command line of `landbridge init` leaves out.

use super::error::InitError;
use super::init_options::{
    InitLinkOption, InitPerRegionOption, InitRegionOption, parse_init_addresses_option,
    parse_init_name_option,
};
use std::io::{BufRead, Write};
use std::num::NonZeroU32;
use units::{BitRate, Fraction, Span};

/// Answers to the questions, in the form of options.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub regions: Vec<InitRegionOption>,
    pub ranks: Vec<InitPerRegionOption<NonZeroU32>>,
    pub port_rates: Vec<InitPerRegionOption<BitRate>>,
    pub links: Vec<InitLinkOption>,
}

/// Asks questions and reads a line for each answer.
pub(crate) struct Questioner<R, W> {
    input: R,
    output: W,
}

impl<R: BufRead, W: Write> Questioner<R, W> {
    /// Makes a questioner that reads answers from `input` and writes questions to `output`.
    pub fn new(input: R, output: W) -> Self {
        Self { input, output }
    }

    /// Asks for the regions, their gateways, and the links between them.
    ///
    /// # Errors
    /// [`InitError::AnswersEnded`]: the input ended or failed.
    pub fn ask_for_deployment(&mut self) -> Result<Answers, InitError> {
        let mut answers = Answers::default();
        let names = self.ask("Names of the regions, such as `east west`", None, |text| {
            let names =
                text.split([',', ' ']).filter(|word| !word.is_empty()).map(parse_init_name_option);
            match names.collect::<Result<Vec<_>, _>>()? {
                names if names.is_empty() => Err("no name; write one for each region".to_owned()),
                names => Ok(names),
            }
        })?;
        for name in &names {
            let region = Some(name.clone());
            let question = format!(
                "{name}: IP addresses or host names of its gateways, at which other regions reach \
                 them; one for each host with trainers"
            );
            let addresses = self.ask(&question, None, parse_init_addresses_option)?;
            answers.regions.push(InitRegionOption { region: name.clone(), addresses });
            let question = format!("{name}: ranks (GPUs) at each gateway");
            let value = self.ask(&question, Some("8"), parse_question_answer)?;
            answers.ranks.push(InitPerRegionOption { region: region.clone(), value });
            let question = format!("{name}: rate of each gateway's port to the WAN");
            let value = self.ask(&question, Some("10 Gbit/s"), parse_question_answer)?;
            answers.port_rates.push(InitPerRegionOption { region, value });
        }
        for (at, one) in names.iter().enumerate() {
            for other in &names[at + 1..] {
                answers.links.extend(self.ask_for_link(one, other)?);
            }
        }
        Ok(answers)
    }

    /// Asks for the link between two regions; `None` if there is none.
    fn ask_for_link(
        &mut self,
        one: &str,
        other: &str,
    ) -> Result<Option<InitLinkOption>, InitError> {
        let question =
            format!("{one} to {other}: round-trip time, such as `80 ms`; `none` without a link");
        let rtt: Option<Span> = self.ask(&question, None, |text| match text {
            "none" => Ok(None),
            _ => parse_question_answer(text).map(Some),
        })?;
        let Some(rtt) = rtt else {
            return Ok(None);
        };
        let question = format!("{one} to {other}: rate that is yours alone; `unknown` if none is");
        let rate: Option<BitRate> = self.ask(&question, Some("unknown"), |text| match text {
            "unknown" => Ok(None),
            _ => parse_question_answer(text).map(Some),
        })?;
        let question = format!("{one} to {other}: random loss");
        let loss: Fraction = self.ask(&question, Some("0 %"), parse_question_answer)?;
        let loss = (loss != Fraction::default()).then_some(loss);
        Ok(Some(InitLinkOption { link: format!("{one}-{other}"), rtt, rate, loss }))
    }

    /// Asks one question until its answer can be parsed. An empty answer means `default`.
    fn ask<T>(
        &mut self,
        question: &str,
        default: Option<&str>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, InitError> {
        let hint = default.map(|default| format!(" [{default}]")).unwrap_or_default();
        loop {
            let written = write!(self.output, "{question}{hint}: ");
            written.and_then(|()| self.output.flush()).map_err(|_| InitError::AnswersEnded)?;
            let mut line = String::new();
            match self.input.read_line(&mut line) {
                Ok(0) | Err(_) => return Err(InitError::AnswersEnded),
                Ok(_) => {}
            }
            let answer = match (line.trim(), default) {
                ("", Some(default)) => default,
                (answer, _) => answer,
            };
            match parse(answer) {
                Ok(value) => return Ok(value),
                Err(why) => {
                    // The next question fails if nobody reads this.
                    let _ = writeln!(self.output, "  {why}");
                }
            }
        }
    }
}

/// Parses an answer of a type that says itself what is wrong.
fn parse_question_answer<T: std::str::FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}
