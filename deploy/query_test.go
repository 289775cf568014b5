package deploy_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// anyValue stands for a label's value that is not known before the fact.
const anyValue = "\x00"

// variables are what Grafana puts into queries, as something that parses.
var variables = strings.NewReplacer("$__rate_interval", "5m", `="$job"`, `=~".*"`, "$instance", ".*")

// judge parses a query and holds it against what is exported: every selector finds a series,
// each of the words of a=~"b|c" does, and rate is taken of counters and of nothing else.
func (e exported) judge(query string) (err error) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(variables.Replace(query))
	if err != nil {
		return fmt.Errorf("%s: %w", query, err)
	}
	parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok || err != nil {
			return nil
		}
		rated := slices.ContainsFunc(path, func(above parser.Node) bool {
			c, ok := above.(*parser.Call)
			return ok && slices.Contains([]string{"rate", "irate", "increase"}, c.Func.Name)
		})
		if kind, known := e.kind[s.Name]; known && rated != (kind == dto.MetricType_COUNTER) {
			err = fmt.Errorf("%s: %s is a %s, and rated is %v", query, s.Name, strings.ToLower(kind.String()), rated)
		}
		for _, matchers := range alternatives(s.LabelMatchers) {
			if !slices.ContainsFunc(e.series[s.Name], func(l labels.Labels) bool { return matchesAll(matchers, l) }) {
				err = fmt.Errorf("%s: no series of %s is %v", query, s.Name, matchers)
			}
		}
		return nil
	})
	return err
}

var words = regexp.MustCompile(`^\w+(\|\w+)+$`)

// alternatives are the matchers, and each word of a=~"b|c" by itself.
func alternatives(all []*labels.Matcher) [][]*labels.Matcher {
	ways := [][]*labels.Matcher{all}
	for _, m := range all {
		if words.MatchString(m.Value) {
			for word := range strings.SplitSeq(m.Value, "|") {
				ways = append(ways, []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, m.Name, word)})
			}
		}
	}
	return ways
}

// matchesAll says whether a series has the labels. One that it lacks matches nothing.
func matchesAll(matchers []*labels.Matcher, l labels.Labels) bool {
	return !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool {
		value := l.Get(m.Name)
		return m.Name != model.MetricNameLabel && value != anyValue && (value == "" || !m.Matches(value))
	})
}
