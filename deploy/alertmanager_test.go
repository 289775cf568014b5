package deploy_test

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
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

// Each rule is about alerts that exist; a page is inhibited by a page alone; and no two alerts
// inhibit each other.
func TestCausesInhibitWhatFollowsFromThem(t *testing.T) {
	if said, err := exec.Command(tool("amtool"), "check-config", alertmanagerFile).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
	severity := map[string]string{}
	for _, r := range rules(t) {
		severity[r.Alert] = r.Labels["severity"]
	}
	var config alertmanagerConfig
	mustRead(t, alertmanagerFile, &config)
	inhibitedBy := map[string][]string{}
	for _, rule := range config.Inhibit {
		for _, source := range named(t, rule.Source[0]) {
			for _, target := range named(t, rule.Target[0]) {
				inhibitedBy[target] = append(inhibitedBy[target], source)
				if severity[source] != "page" || severity[target] == "" {
					t.Errorf("%s (%s) inhibits %s (%s)", source, severity[source], target, severity[target])
				}
			}
		}
	}
	var follow func(alert string, path []string)
	follow = func(alert string, path []string) {
		if slices.Contains(path, alert) {
			t.Fatalf("alerts keep each other back: %v", append(path, alert))
		}
		for _, source := range inhibitedBy[alert] {
			follow(source, append(path, alert))
		}
	}
	for _, alert := range slices.Sorted(maps.Keys(inhibitedBy)) {
		follow(alert, nil)
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
	for i, outage := range outages {
		for name := range strings.FieldsSeq(outage) {
			add := []string{"alert", "add", "Listedge" + name, "--alertmanager.url=http://" + a.url}
			for label, value := range labels["Listedge"+name] {
				add = append(add, label+"="+cmp.Or(map[string]string{"job": strconv.Itoa(i), "instance": "node1", "slo": "latency"}[label], value))
			}
			run(t, exec.Command(tool("amtool"), add...))
		}
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
