"""Made-up secrets: the names people give them, and the formats they have."""

SECRET = [
    "HF_TOKEN", "wandb-api-key", "WANDB_API_KEY", "access-key", "AWS_SECRET_ACCESS_KEY",
    "authToken", "PGPASSWORD", "DB_PASS", "db.password", "apikey", "api_key", "clientSecret",
    "private_key", "MY_PASSPHRASE", "GH_PAT", "AUTHORIZATION", "OPENAI_KEY", "WANDB_KEY", "SSH_KEY",
    "JWT", "COOKIE", "DBPASS", "passwords", "SLACK_WEBHOOK_URL", "SENTRY_DSN", "BASIC_AUTH",
    "DATABASE_PWD", "STRIPE_KEY", "api_keys", "deploy-key", "credentials", "creds", "wandb_key",
    "openai_key", "connection_string", "license_key", "SecretAccessKey", "SessionToken",
    "SharedAccessKey", "accessToken", "ENCRYPTION_KEY",
]  # fmt: skip
# Made up, and split so that secret scanners find nothing here. The formats are in the table of
# secrets.py.
X = "s3cr3tS3cr3t0123456789abcdefghijklmn"
TEXTS = [
    "AKIA" + "IOSFODNN7EXAMPLE", "ASIA" + "IOSFODNN7EXAMPLE", "ghp_" + X, "gho_" + X, "ghs_" + X,
    "github_pat_" + X, "glpat-" + X, "xoxb-" + X, "xapp-" + X, "sk-" + X, "sk-ant-" + X,
    "sk_live_" + X, "rk_test_" + X, "whsec_" + X, "hf_" + X, "npm_" + X, "pypi-" + X,
    "dckr_pat_" + X, "AIza" + X, "ya29." + X, "GOCSPX-" + X, "SG." + X + "." + X,
    "eyJ" + X + ".eyJ" + X + "." + X, "123456789:" + X[:35],
    "-----BEGIN RSA PRIVATE KEY-----\n" + X + "\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\n" + X, "https://hooks.slack.com/services/" + X,
    "https://discord.com/api/webhooks/1/" + X, "https://acme.webhook.office.com/" + X,
    "https://host/x?token=" + X, "https://host/x?a=1&api_key=" + X,
    "https://host/x?X-Amz-Signature=" + X, "Bearer " + X, "authorization: Bearer " + X,
    "Basic " + X + "==", "https://me:" + X + "@host/simple", "https://me:p@" + X + "@host/simple",
    "https://me:p/" + X + "@host/simple", "postgresql://" + X + "@db:5432/x", "password=" + X,
    "DB_PASSWORD: '" + X + "'", '{"token": "' + X + '"}', '{\\"token\\": \\"' + X + '\\"}',
    "AccountKey=" + X + ";EndpointSuffix=x", "Cookie: " + X, '"SecretAccessKey": "' + X + '"',
    '"SessionToken" : "' + X + '"', "PGPASSWORD=" + X, "clientSecret=" + X, "accessToken: " + X,
    "--token " + X, "-token " + X, "--api-key " + X, "--api_key='" + X + "'", "train.py --api_key "
    + X + " --lr 0.1", '["--api_key", "' + X + '", "--lr"]', "['--api-key', '" + X + "']",
    'SM_USER_ARGS=["--api_key","' + X + '"]', 'SM_HPS={"api_key":"' + X + '","lr":1}',
    "SM_HP_API_KEY=" + X, "export HF_TOKEN=" + X, "ENCRYPTION_KEY=" + X, "wandb_key=" + X,
    '{"auth_token": ["' + X + '"]}', "error: password=" + X, 'token="' + X, "api_key -> " + X,
    "api_key => " + X, "<api_key>" + X + "</api_key>", "authorization: token " + X,
    "SharedAccessKey=" + X, "gsk_" + X, "hvs." + X, "nvapi-" + X, "dapi" + "0123456789abcdef" * 2
    + "s3cr3t",
]  # fmt: skip
