"""winsor inside other people's training loops. Each trainer needs its own extra.

privacy.py         what a run promises, in one object, and how many logical steps it has
refusals.py        arguments of trainers and rows for evaluation that cannot be kept sound
row_losses.py      one loss per row from the models of `transformers`
transformers.py    `PrivateTrainer`, a `transformers.Trainer`      winsor[transformers]
lightning.py       `PrivateModule`, a `LightningModule`            winsor[lightning]
"""
