package edge

import "html/template"

// The page below /docs keeps a key in memory, until it is reloaded or closed: what
// a browser stores, every script of this address can read for years. Whoever
// wants it stored ticks a box, and has it forgotten by taking the tick away. (The
// item "authorized" is Swagger UI's.)
const (
	docsHead = template.HTML(`<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
        .remember-key {
            display: block;
            max-width: 1460px;
            margin: 0 auto;
            padding: 10px 20px;
            font: 14px sans-serif;
            text-align: right;
        }
    </style>
<script>
	function remembersKey() {
		return localStorage.getItem("rememberKey") === "yes";
	}
	function rememberKey(yes) {
		window.ui.getConfigs().persistAuthorization = yes;
		if (yes) {
			localStorage.setItem("rememberKey", "yes");
			window.ui.authActions.persistAuthorizationIfNeeded();
		} else {
			forgetKey();
		}
	}
	function forgetKey() {
		localStorage.removeItem("rememberKey");
		localStorage.removeItem("authorized");
	}
	if (!remembersKey()) {
		forgetKey();
	}
</script>`)

	docsTop = template.HTML(`<label class="remember-key"><input type="checkbox" id="remember-key"> Remember the API key in this browser</label>
<script>
	const box = document.getElementById("remember-key");
	box.checked = remembersKey();
	box.onchange = () => rememberKey(box.checked);
</script>`)

	docsPersist = "remembersKey()" // Swagger UI's persistAuthorization
)
