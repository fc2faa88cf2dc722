//! Bars as SVG: plain shapes and text, readable in light and in dark.

use std::fmt::Write as _;

use crate::report::Finding;

const WIDTH: f64 = 840.0;
const ROW: f64 = 26.0;
/// Where bars begin, and how long the longest is.
const BARS: (f64, f64) = (370.0, 380.0);
const TOP: f64 = 34.0;

/// One bar for each figure with its spread, and a mark where its target is.
pub(crate) fn bars(title: &str, findings: &[&Finding]) -> String {
    let most = findings.iter().map(|finding| {
        let target = finding.target.map_or(0.0, |target| target.value());
        finding.most().max(target)
    });
    let scale = BARS.1 / most.fold(f64::MIN_POSITIVE, f64::max);
    let height = TOP + ROW * findings.len() as f64 + 10.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<title>{title}</title>\n<style>\
         text{{fill:#24292f}}.bar{{fill:#4c78a8}}.spread{{stroke:#24292f}}.target{{stroke:#d1495b;stroke-width:2}}\
         @media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}.spread{{stroke:#e6edf3}}}}</style>\n\
         <text x=\"8\" y=\"20\" font-weight=\"bold\">{title}</text>\n"
    );
    for (index, finding) in findings.iter().enumerate() {
        let y = TOP + ROW * index as f64;
        let (middle, x) = (y + ROW / 2.0, |value: f64| BARS.0 + value * scale);
        let (median, least, most) = (finding.median(), finding.least(), finding.most());
        writeln!(
            svg,
            "<text x=\"8\" y=\"{:.1}\">{}</text>\
             <rect class=\"bar\" x=\"{}\" y=\"{:.1}\" width=\"{:.1}\" height=\"16\"/>\
             <line class=\"spread\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{median:.2}</text>",
            middle + 5.0,
            finding.figure,
            BARS.0,
            y + 5.0,
            median * scale,
            x(least),
            x(most),
            x(most) + 8.0,
            middle + 5.0,
        )
        .unwrap();
        if let Some(target) = finding.target {
            let at = x(target.value());
            writeln!(
                svg,
                "<line class=\"target\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                y + 2.0,
                y + ROW - 2.0
            )
            .unwrap();
        }
    }
    svg.push_str("</svg>\n");
    svg
}
