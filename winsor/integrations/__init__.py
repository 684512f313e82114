"""winsor inside other people's training loops. Each file needs its own extra.

privacy.py               what a run promises, in one object: epsilon, delta, rule
transformers.py          `PrivateTrainer`, a `transformers.Trainer`      winsor[transformers]
training_arguments.py    arguments of `Trainer` that cannot be kept sound
run_length.py            how many logical steps a run has
row_losses.py            one loss per row from the models of `transformers`
same_rows.py             are these rows for evaluation the private ones?
lightning.py             `PrivateModule`, a `LightningModule`            winsor[lightning]
"""
