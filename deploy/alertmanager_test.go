package deploy_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const alertmanagerFile = "alertmanager/alertmanager.yml"

// alertmanagerConfig is what the tests read of alertmanager.yml.
type alertmanagerConfig struct {
	Route     map[string]any
	Receivers []struct{ Name string }
	Inhibit   []struct {
		Source []string `json:"source_matchers"`
		Target []string `json:"target_matchers"`
		Equal  []string
	} `json:"inhibit_rules"`
}

// named returns the names of the alerts that a matcher of alertname in alertmanager.yml is about.
func named(t *testing.T, matcher string) (names []string) {
	t.Helper()
	m := regexp.MustCompile(`^alertname (?:= (\w+)|=~ "Listedge\(([\w|]+)\)")$`).FindStringSubmatch(matcher)
	if m == nil {
		t.Fatalf("matcher %q is of no form that the test knows", matcher)
	}
	if m[1] != "" {
		return []string{m[1]}
	}
	for name := range strings.SplitSeq(m[2], "|") {
		names = append(names, "Listedge"+name)
	}
	return names
}

// Each rule is about alerts that exist, and a page is inhibited by a page alone. That no two alerts inhibit each other shows
// where they fire together: TestOneNotificationForEachOutage.
func TestCausesInhibitWhatFollowsFromThem(t *testing.T) {
	t.Parallel()
	severity := map[string]string{}
	for _, r := range rules(t) {
		severity[strings.TrimPrefix(r.Alert, "Listedge")] = r.Labels["severity"]
	}
	for _, p := range inhibited(t) {
		if severity[p.cause] != "page" || severity[p.follows] == "" {
			t.Errorf("%s (%s) inhibits %s (%s)", p.cause, severity[p.cause], p.follows, severity[p.follows])
		}
	}
	for severity, receiver := range map[string]string{"page": "pages", "ticket": "tickets", "none": "watchdog"} {
		said, err := exec.Command(tool("amtool"), "config", "routes", "test", "--config.file="+alertmanagerFile, "severity="+severity).Output()
		if err != nil || strings.TrimSpace(string(said)) != receiver {
			t.Errorf("%s goes to %s (%v)", severity, said, err)
		}
	}
}

// Of all that fires in an outage, one alert is a notification. The alerts have the labels that
// the cases of promtool show.
func TestOneNotificationForEachOutage(t *testing.T) {
	t.Parallel()
	labels := map[string]map[string]string{}
	for _, c := range alertCases(t) {
		for _, want := range c.Want {
			if len(want.Labels) > len(labels[c.Alert]) { // a fleet that Prometheus does not know has no name
				labels[c.Alert] = want.Labels
			}
		}
	}
	a := startAlertmanager(t)
	// The first of each names the cause; all are of one node, and each outage is of a job of its own.
	outages := []string{
		"FleetDown NoReadyNode NoTraffic NodeDown NodeRestarts NoFollower ErrorBudgetBurnsFast ErrorBudgetBurnsSlowly",
		"LoadBalancerDown NoTraffic ErrorBudgetBurnsSlowly",
		"NoReadyNode NoTraffic ErrorBudgetBurnsSlowly",
		"WrongDatabase NoReadyNode NodeNotReady ManyFollowers NoFollower FreshnessUntrusted ErrorBudgetBurnsFast ErrorBudgetBurnsSlowly",
		"OldTimeline FreshnessUntrusted OriginBreakerOpen KeyBreakerOpen NodeNotReady ErrorBudgetBurnsFast ErrorBudgetBurnsSlowly",
		"RedisDown LimiterDegraded CacheRedisBreakerOpen NoFollower FreshnessUntrusted ErrorBudgetBurnsFast ErrorBudgetBurnsSlowly",
		"PostgresDown OriginBreakerOpen KeyBreakerOpen NoFollower FreshnessUntrusted FollowerLags NodeNotReady WrongDatabase NoReadyNode UsageUnwritten " +
			"ReplicaFails ErrorBudgetBurnsFast ErrorBudgetBurnsSlowly",
		"NoFollower FreshnessUntrusted ErrorBudgetBurnsFast ErrorBudgetBurnsSlowly",
		"OriginBreakerOpen KeyBreakerOpen FreshnessUntrusted ErrorBudgetBurnsFast ErrorBudgetBurnsSlowly",
		"LimiterDegraded CacheRedisBreakerOpen FreshnessUntrusted ErrorBudgetBurnsSlowly",
		"ErrorBudgetBurnsFast ErrorBudgetBurnsSlowly",
		"CertificateExpiresSoon CertificateExpires",
	}
	type alert struct {
		Labels map[string]string `json:"labels"`
	}
	var all []alert
	for i, outage := range outages {
		for name := range strings.FieldsSeq(outage) {
			its := map[string]string{"alertname": "Listedge" + name}
			for label, value := range labels["Listedge"+name] {
				its[label] = cmp.Or(map[string]string{"job": strconv.Itoa(i), "instance": "node1", "slo": "latency"}[label], value)
			}
			all = append(all, alert{its})
		}
	}
	if said := must1(client.Post("http://"+a.url+"/api/v2/alerts", "application/json",
		bytes.NewReader(must1(json.Marshal(all))))); said.StatusCode != http.StatusOK {
		t.Fatal(said.Status)
	}
	for i, outage := range outages {
		cause, _, _ := strings.Cut(outage, " ")
		t.Run(cause, func(t *testing.T) {
			within(t, patience, "one is active", func() bool {
				active, _ := a.state(t, "job="+strconv.Itoa(i))
				return slices.Equal(active, []string{"Listedge" + cause})
			})
		})
	}
}

// alertmanager is a real one with the configuration of the stack, whose notifications
// the test receives.
type alertmanager struct {
	url string

	mu       sync.Mutex // guards notified
	notified []string   // the names of alerts that were sent to somebody
}

func startAlertmanager(t *testing.T) *alertmanager {
	t.Helper()
	a := &alertmanager{url: "127.0.0.1:" + freePort()}
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var sent struct {
			Status      string
			GroupLabels map[string]string
		}
		if err := json.NewDecoder(r.Body).Decode(&sent); err == nil && sent.Status == "firing" {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.notified = append(a.notified, sent.GroupLabels["alertname"])
		}
	}))
	t.Cleanup(receiver.Close)
	webhook := "\n    webhook_configs: [{url: '" + receiver.URL + "'}]"
	config := write(t, "alertmanager.yml", replaced(t, alertmanagerFile,
		"- name: pages", "- name: pages"+webhook, "- name: tickets", "- name: tickets"+webhook,
		"group_wait: 20s", "group_wait: 10s", "group_interval: 1m", "group_interval: 1s"))
	name := "alertmanager"
	if _, err := exec.LookPath(name); err != nil { // Debian's
		name = "prometheus-alertmanager"
	}
	startProgram(t, exec.Command(tool(name), "--config.file="+config, "--storage.path="+t.TempDir(), "--web.listen-address="+a.url, "--cluster.listen-address="))
	within(t, patience, "Alertmanager is ready", func() bool {
		status, _, err := get("http://"+a.url+"/-/ready", "")
		return err == nil && status == http.StatusOK
	})
	return a
}

// state lists the alerts that it would notify of, and those that it inhibits, of those that match.
func (a *alertmanager) state(t *testing.T, matchers ...string) (active, inhibited []string) {
	t.Helper()
	var alerts []struct {
		Labels map[string]string
		Status struct{ State string }
	}
	_, body, err := get("http://"+a.url+"/api/v2/alerts?"+url.Values{"filter": matchers}.Encode(), "")
	must(err)
	if err := json.Unmarshal(body, &alerts); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	for _, alert := range alerts {
		if name := alert.Labels["alertname"]; alert.Status.State == "suppressed" {
			inhibited = append(inhibited, name)
		} else {
			active = append(active, name)
		}
	}
	slices.Sort(active)
	slices.Sort(inhibited)
	return slices.Compact(active), slices.Compact(inhibited)
}

// notifications are the names of the alerts that were sent to somebody, each once.
func (a *alertmanager) notifications() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(a.notified)))
}

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
