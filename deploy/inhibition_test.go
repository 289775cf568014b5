package deploy_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pair is a cause and an alert that follows from it, both without Listedge.
type pair struct{ cause, follows string }

// inhibited are the pairs of alertmanager.yml.
func inhibited(t *testing.T) (pairs []pair) {
	t.Helper()
	var config alertmanagerConfig
	mustRead(t, alertmanagerFile, &config)
	for _, rule := range config.Inhibit {
		for _, cause := range named(t, rule.Source[0]) {
			for _, follows := range named(t, rule.Target[0]) {
				pairs = append(pairs, pair{strings.TrimPrefix(cause, "Listedge"), strings.TrimPrefix(follows, "Listedge")})
			}
		}
	}
	return pairs
}

// leftOut are the pairs of rates and the causes whose time they leave out.
func leftOut(t *testing.T) (pairs []pair) {
	t.Helper()
	causes := regexp.MustCompile(`past150s\{alertname=~?"Listedge\(?([\w|]+)\)?"\}`)
	for _, r := range rules(t) {
		if m := causes.FindStringSubmatch(r.Expr); m != nil {
			for cause := range strings.SplitSeq(m[1], "|") {
				pairs = append(pairs, pair{cause, strings.TrimPrefix(r.Alert, "Listedge")})
			}
		}
	}
	return pairs
}

// symptoms are the series by which the rules know an outage, with their values while all is well and while it lasts. A
// value that begins with + is what a counter gains between two scrapes.
var symptoms = map[string]map[string][2]string{
	"FleetDown":        {`up{job="listedge", instance="node1"}`: {"1", "0"}, `up{job="listedge", instance="node2"}`: {"1", "0"}},
	"NodeDown":         {`up{job="listedge", instance="node2"}`: {"1", "0"}},
	"LoadBalancerDown": {`up{job="haproxy", fleet="listedge"}`: {"1", "0"}},
	"NoReadyNode":      {`haproxy_backend_active_servers{job="haproxy", fleet="listedge", proxy="nodes"}`: {"2", "0"}},
	"NodeNotReady":     {`listedge_ready{job="listedge", instance="node1"}`: {"1", "0"}},
	"NodeRestarts":     {`process_start_time_seconds{job="listedge", instance="node1"}`: {"+0", "+1"}},
	"WrongDatabase":    {`listedge_check_up{job="listedge", instance="node1", check="fleet"}`: {"1", "0"}},
	"OldTimeline":      {`listedge_check_up{job="listedge", instance="node1", check="timeline"}`: {"1", "0"}},
	"RedisDown":        {`listedge_check_up{job="listedge", instance="node1", check="redis"}`: {"1", "0"}},
	"PostgresDown":     {`listedge_check_up{job="listedge", instance="node1", check="postgres"}`: {"1", "0"}},
	"ReplicaFails":     {`listedge_check_up{job="listedge", instance="node1", check="replica x"}`: {"1", "0"}},
	"CertificateExpires": {
		`listedge_check_up{job="listedge", instance="node1", check="certificate"}`: {"1", "0"}},
	"CertificateExpiresSoon": { // time begins at 0 here
		`listedge_tls_certificate_expiry_timestamp_seconds{job="listedge", instance="node1"}`: {"9000000", "90000"}},
	"FreshnessUntrusted": {`listedge_freshness_mode{job="listedge", instance="node1", mode="untrusted"}`: {"0", "1"}},
	"FreshnessByAge": {`listedge_freshness_mode{job="listedge", instance="node1", mode="ttl"}`: {"0", "1"},
		`listedge_freshness_bound_seconds{job="listedge", instance="node1"}`: {"0.5", "0.5"}},
	"NoFollower": {`listedge_freshness_follower{job="listedge", instance="node1"}`: {"1", "0"},
		`listedge_freshness_mode{job="listedge", instance="node1", mode="ttl"}`: {"0", "0"}},
	"ManyFollowers": {`listedge_freshness_follower{job="listedge", instance="node1"}`: {"1", "1"},
		`listedge_freshness_follower{job="listedge", instance="node2"}`: {"0", "1"}},
	"FollowerLags":          {`listedge_freshness_follower_lag_bytes{job="listedge", instance="node1"}`: {"0", "100000000"}},
	"LimiterDegraded":       {`listedge_limiter_breaker_open{job="listedge", instance="node1"}`: {"0", "1"}},
	"CacheRedisBreakerOpen": {`listedge_cache_redis_breaker_open{job="listedge", instance="node1"}`: {"0", "1"}},
	"OriginBreakerOpen":     {`listedge_origin_breaker_open{job="listedge", instance="node1"}`: {"0", "1"}},
	"KeyBreakerOpen":        {`listedge_key_breaker_open{job="listedge", instance="node1"}`: {"0", "1"}},
	"OriginOverloaded":      {`listedge_origin_fetches_total{job="listedge", instance="node1", outcome="overloaded"}`: {"+0", "+30"}},
	"ReplicasLag": {`listedge_origin_standby_fetches_total{job="listedge", instance="node1", outcome="ok"}`: {"+30", "+30"},
		`listedge_origin_standby_fetches_total{job="listedge", instance="node1", outcome="lagging"}`: {"+0", "+60"}},
	"UsageUnwritten":         {`listedge_usage_unwritten_seconds{job="listedge", instance="node1"}`: {"0", "700"}},
	"NoTraffic":              {answered("200"): {"+600", "+0"}},
	"KeysRefused":            {answered("200"): {"+600", "+600"}, answered("401"): {"+0", "+300"}},
	"LimitsRefuse":           {answered("200"): {"+600", "+600"}, answered("429"): {"+0", "+300"}},
	"ErrorBudgetBurnsFast":   {answered("200"): {"+600", "+600"}, answered("503"): {"+0", "+300"}},
	"ErrorBudgetBurnsSlowly": {answered("200"): {"+600", "+600"}, answered("503"): {"+0", "+300"}},
}

func answered(status string) string {
	return `listedge_http_requests_total{job="listedge", instance="node1", route="items", status="` + status + `"}`
}

// Both outages of a pair begin with scrape `both`, as one. They are over with scrape `over`, and what followed with the
// next. A minute later what followed begins again, alone.
const scrape, both, over, again, last = 15 * time.Second, 120, 190, 195, 195 + 70

// played are the series of a pair in a job of its own.
func played(p pair, job string) (series []string) {
	values := map[string][]string{}
	play := func(alert string, lasts func(scrape int) bool) {
		for name, value := range symptoms[alert] {
			for i := range last {
				if len(values[name]) == i {
					values[name] = append(values[name], value[0])
				}
				if lasts(i) {
					values[name][i] = value[1]
				}
			}
		}
	}
	play(p.cause, func(i int) bool { return both <= i && i < over })
	play(p.follows, func(i int) bool { return both <= i && i < over+1 || again <= i })
	for name, all := range values {
		sum := 0
		for i, value := range all {
			if gain, counts := strings.CutPrefix(value, "+"); counts {
				sum += must1(strconv.Atoi(gain))
				all[i] = strconv.Itoa(sum)
			}
		}
		series = append(series, fmt.Sprintf("      - {series: '%s', values: '%s'}\n", strings.Replace(name, `="listedge"`, `="`+job+`"`, 1), strings.Join(all, " ")))
	}
	slices.Sort(series)
	return series
}

// What an alert inhibits ends with its outage: nobody is notified of the end. If it begins again a minute later, it
// notifies as soon as ever; what looks at rates, within minutes.
func TestAnAlertInhibitsWhileItsOutageLasts(t *testing.T) {
	t.Parallel()
	patience := map[string]time.Duration{}
	for _, r := range rules(t) {
		name := strings.TrimPrefix(r.Alert, "Listedge")
		patience[name] = 2 * scrape
		if r.For != "" {
			patience[name] += must1(time.ParseDuration(r.For))
		}
		if regexp.MustCompile(`listedge:slo_|rate\(|_over_time\(`).MatchString(r.Expr) {
			patience[name] += 5 * time.Minute
		}
	}
	var series, asked strings.Builder
	ask := func(expr string, at int, samples string) {
		fmt.Fprintf(&asked, "      - {expr: '%s', eval_time: %s, exp_samples: %s}\n", expr, time.Duration(at)*scrape, samples)
	}
	for i, p := range slices.Concat(inhibited(t), leftOut(t)) {
		if p.cause == "ErrorBudgetBurnsFast" {
			continue // it begins again with what follows
		}
		if symptoms[p.cause] == nil || symptoms[p.follows] == nil {
			t.Errorf("the test does not know the series of %v", p)
			continue
		}
		job := "listedge" + strconv.Itoa(i)
		series.WriteString(strings.Join(played(p, job), ""))
		fires := `group(ALERTS{job="` + job + `", alertstate="firing", alertname="Listedge%s"})`
		alone := fmt.Sprintf(fires+` unless `+fires, p.follows, p.cause)
		if p.follows != "ErrorBudgetBurnsSlowly" && p.follows != "NodeRestarts" { // tickets about hours that have passed
			ask("count_over_time(("+alone+")[15m:15s])", again, "[]")
		}
		ask(alone, again+int(patience[p.follows]/scrape), "[{value: 1}]")
	}
	promtool(t, "test", "rules", write(t, "pairs.yml", "rule_files: ['"+must1(filepath.Abs(rulesFile))+"']\nevaluation_interval: "+scrape.String()+
		"\ntests:\n  - interval: "+scrape.String()+"\n    input_series:\n"+series.String()+"    promql_expr_test:\n"+asked.String()))
}
