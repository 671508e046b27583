//! Spans as OTLP/JSON: the body of a request to `/v1/traces` of an OpenTelemetry collector.
//!
//! The protocol is that of opentelemetry-proto 1: ids are hexadecimal digits, and whole numbers of 64 bits
//! are texts.

use super::{CollectiveSpan, SpanOutcome, SpanTraceId};
use hier_collectives::post::Timing;
use serde_json::{Value, json};
use units::TimeNs;

/// The gateway whose spans are exported.
#[derive(Debug, Clone)]
pub struct SpanSource {
    /// The fabric's name.
    pub fabric: String,
    /// The name of the gateway's region.
    pub region: String,
    /// The gateway's name.
    pub gateway: String,
}

/// Returns the request for a batch of collectives: a span of each, with a span of each of its phases.
/// `unix_offset_ns` is added to the times of the gateway's clock.
pub fn otlp_request(source: &SpanSource, batch: &[CollectiveSpan], unix_offset_ns: i128) -> Value {
    let spans: Vec<Value> =
        batch.iter().flat_map(|one| otlp_collective(source, one, unix_offset_ns)).collect();
    let resource = [
        otlp_text("service.name", "landbridge"),
        otlp_text("service.version", env!("CARGO_PKG_VERSION")),
        otlp_text("service.namespace", &source.fabric),
        otlp_text("service.instance.id", &source.gateway),
        otlp_text("landbridge.region", &source.region),
    ];
    let scope = json!({ "name": "landbridge", "version": env!("CARGO_PKG_VERSION") });
    json!({
        "resourceSpans": [{
            "resource": { "attributes": resource },
            "scopeSpans": [{ "scope": scope, "spans": spans }],
        }],
    })
}

/// Returns the span of a collective, and those of its phases if it completed.
fn otlp_collective(source: &SpanSource, one: &CollectiveSpan, unix_offset_ns: i128) -> Vec<Value> {
    let trace = one.trace.trace_id();
    let span = |part: u8, name: &str, (begin, end): (TimeNs, TimeNs)| {
        let ns = [begin, end.max(begin)].map(|at| i128::from(at.ns()) + unix_offset_ns);
        otlp_span(trace, (&source.gateway, part), name, ns)
    };
    let operation = one.descriptor.map_or("collective", |posted| posted.pattern.name());
    let mut whole = span(0, operation, (one.begun, one.end));
    whole["attributes"] = json!(otlp_collective_attributes(one));
    if let SpanOutcome::Failed(failure) = &one.outcome {
        whole["status"] = json!({ "code": STATUS_ERROR, "message": failure.to_string() });
    }
    let mut spans = vec![whole];
    if let SpanOutcome::Completed(timing) = &one.outcome {
        let [posted, reduced, exchanged, ready] = phase_ends(timing);
        for (part, name, begin, end) in [
            (1, "wait for ranks", one.begun, posted),
            (2, "local reduction", posted, reduced),
            (3, "exchange", reduced, exchanged),
            (4, "delivery", exchanged, ready),
        ] {
            spans.push(span(part, name, (begin, end)));
        }
    }
    spans
}

/// Returns the ends of the phases of a collective, in their order. A gateway that sends nothing reduces
/// nothing for others, and one that receives nothing delivers nothing.
fn phase_ends(timing: &Timing) -> [TimeNs; 4] {
    let Timing { posted, wan_begin, wan_end, ready } = *timing;
    let (reduced, exchanged) = if wan_begin == wan_end {
        (posted, wan_end)
    } else if wan_end <= posted {
        (wan_begin, ready)
    } else {
        (wan_begin, wan_end)
    };
    let reduced = reduced.max(posted);
    let exchanged = exchanged.max(reduced);
    [posted, reduced, exchanged, ready.max(exchanged)]
}

/// Returns the part `part` of what `gateway` has of a trace, from one time to another since 1970. All
/// parts but 0 are children of that.
fn otlp_span(
    trace: SpanTraceId,
    (gateway, part): (&str, u8),
    name: &str,
    unix_ns: [i128; 2],
) -> Value {
    // The time before 1970 is of no use to a collector.
    let [begin, end] = unix_ns.map(|at| at.max(0).to_string());
    let mut span = json!({
        "traceId": trace.to_string(),
        "spanId": trace.span_id(gateway, part).to_string(),
        "name": name,
        "kind": SPAN_KIND_INTERNAL,
        "startTimeUnixNano": begin,
        "endTimeUnixNano": end,
    });
    if part > 0 {
        span["parentSpanId"] = json!(trace.span_id(gateway, 0).to_string());
    }
    span
}

/// Returns what is known of a collective besides its times.
fn otlp_collective_attributes(one: &CollectiveSpan) -> Vec<Value> {
    let mut attributes = vec![
        otlp_text("landbridge.job", &one.job),
        otlp_number("landbridge.epoch", one.trace.epoch.0),
        otlp_number("landbridge.collective", one.trace.sequence.0),
    ];
    attributes.extend(one.ranks.as_ref().map(|ranks| otlp_text("landbridge.group", ranks)));
    if let Some(posted) = &one.descriptor {
        attributes.push(otlp_text("landbridge.operation", posted.pattern.name()));
        attributes.push(otlp_text("landbridge.reduction", posted.op.name()));
        attributes.push(otlp_text("landbridge.dtype", posted.dtype.name()));
        attributes.push(otlp_number("landbridge.bytes", posted.bytes()));
    }
    if !one.awaited.is_empty() {
        let names: Vec<_> = one.awaited.iter().map(|name| json!({ "stringValue": name })).collect();
        let names = json!({ "arrayValue": { "values": names } });
        attributes.push(json!({ "key": "landbridge.awaited", "value": names }));
    }
    if let SpanOutcome::Failed(failure) = &one.outcome {
        attributes.push(otlp_number("landbridge.failure.code", failure.code as u64));
    }
    attributes
}

/// Makes an attribute with a text.
fn otlp_text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Makes an attribute with a whole number.
fn otlp_number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

/// 1: the kind of a span that answers no request and makes none.
const SPAN_KIND_INTERNAL: u8 = 1;
/// 2: the status of a collective that failed, `STATUS_CODE_ERROR`.
const STATUS_ERROR: u8 = 2;

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::observe::spans::SpanTrace;
    use hier_collectives::descriptor::{Descriptor, Dtype, Pattern};
    use hier_collectives::ids::{Epoch, GroupId, Sequence};
    use hier_collectives::post::{Failure, FailureCode};

    /// Returns the time of a millisecond.
    fn ms(number: u64) -> TimeNs {
        TimeNs::from_ns(number * 1_000_000)
    }

    /// Returns a collective of the job that completed.
    pub(in crate::observe::spans) fn completed(sequence: u64) -> CollectiveSpan {
        let (posted, wan_begin, wan_end, ready) = (ms(20), ms(21), ms(90), ms(92));
        let (group, epoch, sequence) = (GroupId(1), Epoch(3), Sequence(sequence));
        CollectiveSpan {
            trace: SpanTrace { group, boots: 2, epoch, sequence },
            job: "train".to_owned(),
            ranks: None,
            descriptor: Some(Descriptor::of_bytes(Pattern::AllGather, 4096)),
            awaited: vec!["west-0".to_owned()],
            begun: ms(10),
            end: ready,
            outcome: SpanOutcome::Completed(Timing { posted, wan_begin, wan_end, ready }),
        }
    }

    /// Returns the spans of a collective in a request, each of which the collective counts.
    fn spans(one: CollectiveSpan) -> Vec<Value> {
        let [fabric, region, gateway] = ["two", "east", "east-0"].map(str::to_owned);
        let count = one.count();
        let request = otlp_request(&SpanSource { fabric, region, gateway }, &[one], 5_000_000_000);
        let spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array();
        let spans = spans.expect("spans").clone();
        assert_eq!(spans.len() as u64, count);
        spans
    }

    #[test]
    fn a_collective_has_a_span_and_one_of_each_phase() {
        let spans = spans(completed(7));
        let times: Vec<_> = spans
            .iter()
            .map(|span| (&span["startTimeUnixNano"], &span["endTimeUnixNano"]))
            .map(|(from, to)| (from.as_str().expect("a text"), to.as_str().expect("a text")))
            .collect();
        let expected = [
            ("5010000000", "5092000000"),
            ("5010000000", "5020000000"),
            ("5020000000", "5021000000"),
            ("5021000000", "5090000000"),
            ("5090000000", "5092000000"),
        ];
        assert_eq!(times, expected);
        assert!(spans[1..].iter().all(|phase| phase["parentSpanId"] == spans[0]["spanId"]));
        let has = |key: &str, value: Value| {
            let attributes = spans[0]["attributes"].as_array().expect("attributes");
            attributes.iter().any(|one| one["key"] == key && one["value"] == value)
        };
        assert!(has("landbridge.dtype", json!({ "stringValue": Dtype::U8.name() })), "{spans:?}");
        assert!(has("landbridge.bytes", json!({ "intValue": "4096" })), "{spans:?}");
        assert!(has("landbridge.collective", json!({ "intValue": "7" })), "{spans:?}");
        let awaited = json!({ "arrayValue": { "values": [{ "stringValue": "west-0" }] } });
        assert!(has("landbridge.awaited", awaited), "{spans:?}");
    }

    #[test]
    fn phases_of_one_way_traffic_follow_each_other() {
        let timing =
            |wan_begin, wan_end| Timing { posted: ms(20), wan_begin, wan_end, ready: ms(92) };
        // A receiver of a broadcast, then its root, then a collective inside a region.
        assert_eq!(phase_ends(&timing(ms(90), ms(90))), [ms(20), ms(20), ms(90), ms(92)]);
        assert_eq!(phase_ends(&timing(ms(30), ms(20))), [ms(20), ms(30), ms(92), ms(92)]);
        assert_eq!(phase_ends(&timing(ms(20), ms(20))), [ms(20), ms(20), ms(20), ms(92)]);
    }

    #[test]
    fn a_failure_is_one_span_with_its_reason() {
        let failure = Failure::new(FailureCode::RankLost, "rank 3 is gone");
        let outcome = SpanOutcome::Failed(failure);
        let spans = spans(CollectiveSpan { outcome, descriptor: None, ..completed(8) });
        assert_eq!(spans[0]["name"], "collective");
        let status = &spans[0]["status"];
        assert_eq!(status["code"], 2);
        assert!(status["message"].as_str().expect("a text").contains("rank 3 is gone"), "{status}");
    }
}
