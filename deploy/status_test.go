package deploy_test

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"listedge/internal/sandbox/sandboxtest"
)

// beside is the text beside a label of a card.
func beside(card, label string) string {
	return fmt.Sprintf(`([...document.querySelectorAll("#%s dl div")].find(r => !r.hidden && r.firstChild.textContent === %q)?.lastChild.textContent ?? "")`,
		card, label)
}

// big is a card's first number.
func big(card string) string {
	return fmt.Sprintf(`(document.querySelector("#%s .big b")?.textContent ?? "")`, card)
}

// aboveFive is an expression for whether a number of the page, like 3.53K, is above five.
func aboveFive(text string) string {
	return `(n => parseFloat(n) > 5 || /^[0-9.]+[KM]/.test(n))(` + text + `)`
}

// A metric that is not there would be shown as 0.
func TestTheStatusPageReadsWhatNodesExport(t *testing.T) {
	e := export(t)
	for _, name := range find(t, "../edge/admin/status.html", `"((?:listedge|go|process)_\w+)"`) {
		if len(e.series[name])+len(e.series[name+"_bucket"]) == 0 {
			t.Errorf("no node exports %s", name)
		}
	}
}

func TestTheStatusPageIsLive(t *testing.T) {
	t.Parallel()
	f := startServersWith(t, map[string]string{"max_slot_wal_keep_size": ""}) // as Postgres has it by default
	n, page := f.add(t), openTab(t)
	for _, n := range []*node{n, f.add(t)} {
		n.awaitMode(t, "followed")
	}
	page.resize(t, 1280, "light")
	page.do(t, chromedp.Navigate("http://"+n.admin+"/"))
	page.await(t, `document.querySelector("#state").textContent === "Healthy"`)
	page.await(t, big("traffic")+` === "0"`)
	if said := evaluate[string](t, page, big("hits")); said != "–" {
		t.Errorf("a hit ratio without a page: %s", said)
	}

	stop := load(n.public, f.key, 200*time.Millisecond)
	defer stop()
	for name, expression := range map[string]string{
		"requests":            aboveFive(big("traffic")),
		"hit ratio":           `parseFloat(` + big("hits") + `) > 50`,
		"from memory":         `parseFloat(` + beside("hits", "memory") + `) > 50`,
		"latency":             `/^[1-9].* (µs|ms)$/.test(` + big("latency") + `)`,
		"of memory":           `/^[1-9].* (µs|ms)$/.test(` + beside("latency", "memory") + `)`,
		"of few":              `/^<?[0-9.]+ %$/.test(` + beside("latency", "above 100 ms") + `)`,
		"mode":                big("freshness") + ` === "Followed"`,
		"epoch":               `/\w+\.\w+\.\w+/.test(` + beside("freshness", "epoch") + `)`,
		"decisions":           aboveFive(beside("limits", "decisions")),
		"calls per request":   `/^[0-9.]+$/.test(` + beside("limits", "Redis calls/request") + `)`,
		"nodes":               beside("limits", "nodes in the fleet") + ` === "2"`,
		"cached":              `parseFloat(` + big("memory") + `) > 0`,
		"keys":                big("keys") + ` === "1"`,
		"both nodes":          `document.querySelectorAll("#fleet tbody tr").length === 2 && /\(this\)/.test(document.querySelector("#fleet tbody").textContent)`,
		"how many are summed": `/^all 2/.test(document.querySelector("#fleet tfoot")?.textContent)`,
		"their sum":           aboveFive(`document.querySelector("#fleet tfoot td:nth-child(3)")?.textContent`),
		"the busiest key":     `/^lk_\S+…$/.test(document.querySelector("#busiest td").textContent)`,
		"its requests":        aboveFive(`document.querySelector("#busiest td:nth-child(3)")?.textContent`),
		"lights":              `[...document.querySelectorAll("#lights .good")].map(l => l.textContent).join() === "Postgres up,Redis up,Follower up"`,
		"advice":              `/^Advice: the slot is temporary.*: set max_slot_wal_keep_size/.test(document.querySelector("#advice").textContent)`,
		"a curve of refusals": `document.querySelector("#limits path.line")?.getAttribute("d").startsWith("M") ?? false`,
		"a curve":             `document.querySelector("#traffic path.line")?.getAttribute("d").split("L").length > 3`,
	} {
		t.Log(name)
		page.await(t, expression)
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{360, 1280} {
			page.resize(t, width, scheme)
			page.await(t, `document.documentElement.scrollHeight <= 3 * 800`) // three screens, once details are closed for the width
			if wide := evaluate[int64](t, page, `document.documentElement.scrollWidth`); wide > width {
				t.Errorf("at %d pixels the page is %d wide", width, wide)
			}
			if pale := evaluate[[]string](t, page, pale); len(pale) > 0 {
				t.Errorf("%s: hard to read: %q", scheme, pale)
			}
		}
	}
	if mute := evaluate[[]string](t, page, mute); len(mute) > 0 {
		t.Errorf("no text for screen readers in %q", mute)
	}

	// A node that ends takes itself out of the fleet.
	f.nodes[1].stop(t)
	page.await(t, `document.querySelectorAll("#fleet tbody tr").length === 1`)

	// Paused by the keyboard, the page does not change; then it goes on.
	page.do(t, chromedp.Focus("#pause"), chromedp.KeyEvent("\r"))
	page.await(t, `document.querySelector("#pause").getAttribute("aria-pressed") === "true"`)
	page.await(t, `!asking`)
	stop()
	still := evaluate[int64](t, page, `Math.round(readings.at(-1).at * 1000)`)
	page.await(t, fmt.Sprintf(`performance.now() > %d + 2 * interval`, still))
	if now := evaluate[int64](t, page, `Math.round(readings.at(-1).at * 1000)`); now != still {
		t.Errorf("it was read %d ms after the pause began", now-still)
	}
	page.do(t, chromedp.KeyEvent("\r"))
	page.await(t, big("traffic")+` === "0"`)
	page.keptQuiet(t, n.admin)
}

// pale are texts that stand out from what is behind them by less than 4.5 to 1
// (WCAG 2.2, 1.4.3).
const pale = `(() => {
	const light = rgb => rgb.match(/[\d.]+/g).slice(0, 3).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
		.reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
	const behind = e => { const c = getComputedStyle(e).backgroundColor; return c === "rgba(0, 0, 0, 0)" ? behind(e.parentElement) : c; };
	return [...document.body.querySelectorAll("*:not(script)")].filter(e => e.checkVisibility() && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
		.filter(e => { const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((a, b) => b - a); return (a + .05) / (b + .05) < 4.5; })
		.map(e => e.textContent);
})()`

// mute are the pictures and parts of the page without a name for screen readers.
const mute = `[...document.querySelectorAll("main section, svg")].filter(e => !(
	e.getAttribute("aria-label") || document.getElementById(e.getAttribute("aria-labelledby"))?.textContent))
	.map(e => e.outerHTML.slice(0, 80))`

// The page is for the day on which something is wrong.
func TestTheStatusPageTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	f := startServers(t)
	replica := sandboxtest.Standby(t, f.postgres, nil)
	f.env = append(f.env, "LISTEDGE_REPLICA_URL="+replica.URL("postgres"))
	n, page := f.add(t), openTab(t)
	for _, n := range []*node{n, f.add(t)} {
		n.awaitMode(t, "followed")
	}
	page.resize(t, 400, "dark")
	page.do(t, chromedp.Navigate("http://"+n.admin+"/"))
	is := func(state, problem string) string {
		return fmt.Sprintf(`document.querySelector("#state").textContent === %q && /%s/.test(document.querySelector("#problems").textContent)`, state, problem)
	}
	page.await(t, is("Healthy", "^$"))
	page.await(t, `document.querySelectorAll("#fleet tbody tr").length === 2`)

	stop := load(n.public, f.key, 200*time.Millisecond) // an idle node notices neither that something fails nor that it is back
	defer stop()
	light := func(level, text string) string { // of its own
		return fmt.Sprintf(`[...document.querySelectorAll("#lights .%s")].some(l => l.textContent.startsWith(%q))`, level, "Replica "+replica.Addr()+" "+text)
	}
	page.await(t, light("good", "up"))
	must(replica.Kill(syscall.SIGQUIT))
	page.await(t, light("bad", "down since "))
	page.await(t, fmt.Sprintf(`[...document.querySelectorAll("#problems li")].some(p => p.textContent.startsWith(%q) &&
		p.querySelector("a").getAttribute("href") === "/runbook#listedgereplicafails")`,
		"Replica "+replica.Addr()+" is down since "))
	if good := evaluate[int](t, page, `document.querySelectorAll("#lights .good").length`); good != 3 {
		t.Errorf("%d other lights are green, of Postgres, Redis and the follower", good)
	}
	must(replica.Restart(t.Context()))
	page.await(t, light("good", "up"))
	page.await(t, is("Healthy", "^$"))
	must(f.redis.Kill())
	page.await(t, is("Degraded", `^Redis is down since \d\d:\d\d: dial tcp [0-9.:]+ connect: connection refused[^.]*$`)) // and nothing else
	page.await(t, `/^\d more.*This node enforces limits alone/.test(document.querySelector("#more").textContent)`)
	page.await(t, `document.querySelectorAll("#fleet tr.old").length === 1 &&
		/^2 nodes, 1 known now1 of 1 ready/.test(document.querySelector("#fleet tfoot")?.textContent)`)
	page.await(t, `/^1 not heard of since Redis failed \(\d\d:\d\d\): /.test(document.querySelector("#unheard").textContent)`)
	page.await(t, `/Redis down since/.test(document.querySelector("#lights .bad").textContent)`)
	page.await(t, `document.querySelector("#problems a").getAttribute("href") === "/runbook#listedgeredisdown"`)
	page.await(t, `/Redis is down/.test(document.querySelector("#log").textContent)`)
	page.await(t, beside("limits", "degraded")+`.startsWith("yes")`)
	must(f.redis.Restart(t.Context()))
	page.await(t, is("Healthy", "^$"))
	page.await(t, `document.querySelector("#unheard").hidden && /^all 2/.test(document.querySelector("#fleet tfoot")?.textContent)`)

	must(f.postgres.Kill(syscall.SIGQUIT))
	page.await(t, is("Degraded", `^Postgres is down since .*connection refused[^.]*(Replica [^ ]+ is down since .*)?$`)) // which receives no WAL
	page.await(t, `/^lk_\S+…$/.test(document.querySelector("#busiest td").textContent)`)                                 // keys keep their names
	page.await(t, `[...document.querySelectorAll("#log .what")].filter(e => /Postgres/.test(e.textContent)).length === 1`)
	page.await(t, big("freshness")+` === "Untrusted"`)
	if status, _, err := get("http://"+n.public+"/v1/items?limit=99", f.key); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("%d, %v", status, err)
	}
	page.await(t, `/request failed/.test(document.querySelector("#log .ERROR")?.textContent)`)
	page.await(t, beside("traffic", "server errors (5xx)")+` !== "0 /s"`)
	must(f.postgres.Restart(t.Context()))
	page.await(t, is("Healthy", "^$"))

	stop()
	n.stop(t)
	page.await(t, is("No answer", "does not answer"))
	n.start(t)
	page.await(t, is("Healthy", "^$"))
	page.await(t, `!/request failed/.test(document.querySelector("#log").textContent)`) // of before the start
}
